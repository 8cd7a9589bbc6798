// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/unigram_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

/// How much less likely than the rarest token an unknown character is.
constexpr double kUnknownPenalty = 10.0;

/// Ten to the power of `exponent`, at most 308, exact to the last bit.
double power_of_ten(int exponent) {
  const std::string text = format("1e{}", exponent);
  double power = 0;
  std::from_chars(text.data(), text.data() + text.size(), power);
  return power;
}

}  // namespace

double twice_rounded(double exact) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), std::abs(exact), std::chars_format::scientific)
          .ptr;
  const char* const power = std::find(text.data(), end, 'e');
  uint64_t digits = 0;
  int exponent = std::atoi(power + 1);
  for (const char* place = text.data(); place < power; ++place) {
    if (*place == '.') continue;
    digits = 10 * digits + static_cast<uint64_t>(*place - '0');
    if (place > text.data()) --exponent;
  }
  if (std::abs(exponent) > 308) return exact;
  const auto whole = static_cast<double>(digits);
  const double read = exponent < 0 ? whole / power_of_ten(-exponent) : whole * power_of_ten(exponent);
  return std::copysign(read, exact);
}

UnigramModel::UnigramModel(const JsonReader& model) {
  model.only_keys({"type", "unk_id", "vocab", "byte_fallback"});
  const JsonReader vocab = model["vocab"];
  if (static_cast<int64_t>(vocab.size()) > kMaxVocabulary)
    vocab.fail(format("{} entries; at most {} are accepted", vocab.size(), kMaxVocabulary));
  std::vector<std::string> pieces;
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < vocab.size(); ++i) {
    const JsonReader entry = vocab.at(i);
    if (entry.size() != 2) entry.refuse("a token and its score are expected");
    if (entry.at(0).text().empty()) entry.refuse("an empty token");
    pieces.push_back(entry.at(0).text());
    scores_.push_back(twice_rounded(entry.at(1).number()));
    lowest = std::min(lowest, scores_.back());
  }
  unk_score_ = lowest - kUnknownPenalty;
  vocabulary_ = std::make_shared<Vocabulary>(std::move(pieces));
  if (model.has("unk_id"))
    unk_id_ = static_cast<int32_t>(model["unk_id"].integer(0, std::ssize(scores_) - 1));
  if (model.boolean_or("byte_fallback", false)) byte_ids_ = byte_token_ids(*vocabulary_);
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (int32_t id = 0; id < vocabulary_->id_end(); ++id) entries.emplace_back(vocabulary_->piece(id), id);
  trie_ = PieceTrie(std::move(entries), vocab);
}

int32_t UnigramModel::unknown_id(std::string_view text) const {
  if (unk_id_) return *unk_id_;
  throw Error(format("{} is not in the vocabulary of the tokenizer, and its Unigram model has no unk_id",
                     quoted_for_message(text)));
}

std::vector<UnigramModel::Best> UnigramModel::best_paths(std::string_view word) const {
  std::vector<Best> best(word.size() + 1);
  for (size_t begin = 0; begin < word.size();) {
    const size_t character = utf8_sequence_length(word.substr(begin));
    const auto offer = [&](size_t end, double score) {
      const double sum = score + best[begin].score;
      const bool better = best[end].begin == kNone || sum > best[end].score;
      if (better) {
        best[end].score = sum;
        best[end].begin = static_cast<uint32_t>(begin);
      }
      return better;
    };
    bool is_known = false;
    trie_.for_each_prefix(word.substr(begin), [&](size_t length, int32_t id) {
      if (offer(begin + length, scores_[static_cast<size_t>(id)])) best[begin + length].id = id;
      is_known = is_known || length == character;
    });
    if (!is_known && offer(begin + character, unk_score_))
      best[begin + character].id = unknown_id(word.substr(begin, character));
    begin += character;
  }
  return best;
}

/// Appends the id of a token, or the ids that stand for unknown text.
void UnigramModel::append_text(std::string_view text, std::vector<int32_t>& ids) const {
  if (const auto id = vocabulary_->find(text)) return ids.push_back(*id);
  const auto id_of = [this](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (!byte_ids_.empty() &&
      std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; })) {
    for (const char byte : text) ids.push_back(id_of(byte));
  } else {
    ids.push_back(unknown_id(text));
  }
}

void UnigramModel::append_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() >= kNone)
    throw Error(format("a word of {} bytes is too long; split the text into lines", word.size()));
  const std::vector<Best> best = best_paths(word);
  // From the end; unknown characters beside each other are one text.
  std::vector<std::pair<size_t, size_t>> texts;
  bool joins = false;
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    const bool unknown = unk_id_ && best[end].id == *unk_id_;
    if (unknown && joins) {
      texts.back().first = best[end].begin;
    } else {
      texts.emplace_back(best[end].begin, end);
    }
    joins = unknown;
  }
  for (auto text = texts.rbegin(); text != texts.rend(); ++text)
    append_text(word.substr(text->first, text->second - text->first), ids);
}

}  // namespace stepforge
