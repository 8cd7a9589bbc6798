// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_model.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/byte_alphabet.h"

namespace stepforge {

bool BpeDefinition::is_byte_level() const {
  if (!prefix.empty() || !suffix.empty()) return false;
  for (int byte = 0; byte < 256; ++byte) {
    if (!vocabulary->find(to_byte_alphabet(std::string(1, static_cast<char>(byte))))) return false;
  }
  return true;
}

ByteBpeModel::ByteBpeModel(const BpeDefinition& definition, size_t round_merges)
    : vocabulary_(definition.vocabulary),
      merges_(definition.merges, definition.merged_ids, round_merges),
      ignore_merges_(definition.ignore_merges) {
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = vocabulary_->find(to_byte_alphabet(std::string(1, static_cast<char>(byte)))).value();
  }
}

void ByteBpeModel::append_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto whole = vocabulary_->find(to_byte_alphabet(word))) return ids.push_back(*whole);
  }
  const size_t begin = ids.size();
  ids.resize(begin + word.size());
  for (size_t i = 0; i < word.size(); ++i) ids[begin + i] = byte_ids_[static_cast<uint8_t>(word[i])];
  merges_.apply(ids, begin);
}

CharacterBpeModel::CharacterBpeModel(BpeDefinition definition)
    : definition_(std::move(definition)),
      byte_ids_(byte_token_ids(*definition_.vocabulary)),
      merges_(definition_.merges, definition_.merged_ids) {
  if (definition_.unk_token) unk_id_ = definition_.vocabulary->find(*definition_.unk_token).value_or(-1);
  definition_.merges = {};
  definition_.merged_ids = {};
}

/// Collects the symbols of one word before merging.
class CharacterBpeModel::Symbols {
 public:
  Symbols(const CharacterBpeModel& model, std::vector<int32_t>& ids) : model_(model), ids_(ids) {}

  void add(std::string_view spelling) {
    const BpeDefinition& definition = model_.definition_;
    if (const auto id = definition.vocabulary->find(spelling)) {
      finish();
      ids_.push_back(*id);
    } else if (!(definition.byte_fallback && add_bytes(spelling)) && definition.unk_token) {
      add_unknown(definition, spelling);
    }
  }

  /// Writes the unknown token that may still grow. Hugging Face keeps it while byte tokens pass by.
  void finish() {
    if (unknown_) ids_.push_back(model_.unk_id_);
    unknown_ = false;
  }

 private:
  bool add_bytes(std::string_view spelling) {
    const auto id_of = [this](char byte) { return model_.byte_ids_[static_cast<uint8_t>(byte)]; };
    if (std::any_of(spelling.begin(), spelling.end(), [&](char byte) { return id_of(byte) < 0; }))
      return false;
    for (const char byte : spelling) ids_.push_back(id_of(byte));
    return true;
  }

  void add_unknown(const BpeDefinition& definition, std::string_view spelling) {
    if (model_.unk_id_ < 0) {
      throw Error(format("{} is not in the vocabulary of the tokenizer, and neither is its unk_token {}",
                         quoted_for_message(spelling), quoted_for_message(*definition.unk_token)));
    }
    if (!definition.fuse_unk) finish();
    unknown_ = true;
  }

  const CharacterBpeModel& model_;
  std::vector<int32_t>& ids_;
  bool unknown_ = false;
};

void CharacterBpeModel::append_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (definition_.ignore_merges) {
    if (const auto whole = definition_.vocabulary->find(word)) return ids.push_back(*whole);
  }
  const size_t begin = ids.size();
  Symbols symbols(*this, ids);
  std::string spelling;
  for (size_t at = 0; at < word.size();) {
    const size_t end = at + utf8_sequence_length(word.substr(at));
    const std::string_view character = word.substr(at, end - at);
    const bool has_prefix = at > 0 && !definition_.prefix.empty();
    const bool has_suffix = end == word.size() && !definition_.suffix.empty();
    if (has_prefix || has_suffix) {
      spelling = has_prefix ? definition_.prefix : "";
      spelling += character;
      if (has_suffix) spelling += definition_.suffix;
      symbols.add(spelling);
    } else {
      symbols.add(character);
    }
    at = end;
  }
  symbols.finish();
  merges_.apply(ids, begin);
}

}  // namespace stepforge
