// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/word_model.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

/// The tokens that begin with `prefix`, without it.
PieceTrie trie_of(const Vocabulary& vocabulary, std::string_view prefix, const JsonReader& model) {
  std::vector<std::pair<std::string_view, int32_t>> pieces;
  for (int32_t id = 0; id < vocabulary.id_end(); ++id) {
    const std::string_view piece = vocabulary.piece(id);
    if (piece.size() > prefix.size() && piece.starts_with(prefix))
      pieces.emplace_back(piece.substr(prefix.size()), id);
  }
  return {std::move(pieces), model["vocab"]};
}

int32_t unknown_id(const Vocabulary& vocabulary, const std::string& unk_token, std::string_view word) {
  if (const auto id = vocabulary.find(unk_token)) return *id;
  throw Error(format("the word {} is not in the vocabulary of the tokenizer, and neither is its unk_token {}",
                     quoted_for_message(word), quoted_for_message(unk_token)));
}

}  // namespace

WordPieceModel::WordPieceModel(const JsonReader& model, std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)),
      unk_token_(model["unk_token"].text()),
      max_characters_(static_cast<size_t>(model["max_input_chars_per_word"].count())),
      beginnings_(trie_of(*vocabulary_, "", model)),
      continuations_(trie_of(*vocabulary_, model["continuing_subword_prefix"].text(), model)) {
  model.only_keys({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
}

bool WordPieceModel::append_pieces(std::string_view word, std::vector<int32_t>& ids) const {
  for (size_t begin = 0; begin < word.size();) {
    size_t longest = 0;
    int32_t found = -1;
    const PieceTrie& trie = begin == 0 ? beginnings_ : continuations_;
    trie.for_each_prefix(word.substr(begin), [&](size_t length, int32_t id) {
      longest = length;
      found = id;
    });
    if (found < 0) return false;
    ids.push_back(found);
    begin += longest;
  }
  return true;
}

void WordPieceModel::append_word(std::string_view word, std::vector<int32_t>& ids) const {
  const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; };
  const auto characters =
      word.size() - static_cast<size_t>(std::count_if(word.begin(), word.end(), continues));
  const size_t begin = ids.size();
  if (characters <= max_characters_ && append_pieces(word, ids)) return;
  ids.resize(begin);
  ids.push_back(unknown_id(*vocabulary_, unk_token_, word));
}

WordLevelModel::WordLevelModel(const JsonReader& model, std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)), unk_token_(model["unk_token"].text()) {
  model.only_keys({"type", "unk_token", "vocab"});
}

void WordLevelModel::append_word(std::string_view word, std::vector<int32_t>& ids) const {
  const auto id = vocabulary_->find(word);
  ids.push_back(id ? *id : unknown_id(*vocabulary_, unk_token_, word));
}

}  // namespace stepforge
