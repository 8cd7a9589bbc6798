// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

namespace {

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json isolating_split(std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", std::string(pattern)}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

/// The steps that turn words into bytes: ByteLevel alone has the pattern of GPT-2 and its space before the text.
Json pattern_steps(const WordSplit& split, bool add_prefix_space) {
  if (split.pattern.empty()) return Json::array({byte_level(add_prefix_space, false)});
  if (split.pattern == kGpt2Pattern) return Json::array({byte_level(add_prefix_space, true)});
  return Json::array({isolating_split(split.pattern), byte_level(false, false)});
}

Json begin_template(std::string_view token, int64_t id) {
  const std::string text(token);
  const auto sequence = [](const char* name, int type) -> Json {
    return {{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto special = [&](int type) -> Json {
    return {{"SpecialToken", {{"id", text}, {"type_id", type}}}};
  };
  Json tokens = Json::object();
  append_member(tokens, text, {{"id", text}, {"ids", Json::array({id})}, {"tokens", Json::array({text})}});
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({special(0), sequence("A", 0)})},
          {"pair", Json::array({special(0), sequence("A", 0), special(1), sequence("B", 1)})},
          {"special_tokens", std::move(tokens)}};
}

/// Merges make every piece but the bytes and special tokens.
ByteLevelVocabulary vocabulary_of(const std::vector<TokenPair>& merges) {
  ByteLevelVocabulary vocabulary{.pieces = {}, .merges = merges, .special_tokens = {std::string(kEndOfText)}};
  auto& pieces = vocabulary.pieces;
  for (int byte = 0; byte < 256; ++byte)
    pieces.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
  for (const TokenPair pair : merges) {
    pieces.push_back(pieces.at(static_cast<size_t>(left_token(pair))) +
                     pieces.at(static_cast<size_t>(right_token(pair))));
  }
  return vocabulary;
}

}  // namespace

Json pre_tokenizer_json(const WordSplit& split, bool add_prefix_space) {
  Json steps = pattern_steps(split, add_prefix_space);
  if (split.digits == DigitSplit::one)
    steps.insert(steps.begin(), Json{{"type", "Digits"}, {"individual_digits", true}});
  if (split.digits == DigitSplit::three) steps.insert(steps.begin(), isolating_split(R"(\p{N}{1,3})"));
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

DigitSplit parse_digit_split(std::string_view name) {
  if (name == "pattern") return DigitSplit::by_pattern;
  if (name == "one") return DigitSplit::one;
  if (name == "three") return DigitSplit::three;
  throw UsageError(format("unknown splitting of digits \"{}\"; expected pattern, one or three", name));
}

Json special_token_json(std::string_view content, int64_t id) {
  return {{"id", id},
          {"content", std::string(content)},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", true}};
}

std::string bpe_tokenizer_json(const ByteLevelVocabulary& vocabulary, const WordSplit& split,
                               std::string_view begin) {
  const auto& pieces = vocabulary.pieces;
  Json merges = Json::array();
  for (const TokenPair pair : vocabulary.merges) {
    merges.push_back(format("{} {}", pieces.at(static_cast<size_t>(left_token(pair))),
                            pieces.at(static_cast<size_t>(right_token(pair)))));
  }
  Json vocab = Json::object();
  for (size_t id = 0; id < pieces.size(); ++id) append_member(vocab, pieces[id], id);
  Json added = Json::array();
  Json post_processor;
  auto next = static_cast<int64_t>(pieces.size());
  for (const std::string& token : vocabulary.special_tokens) {
    const auto piece = std::find(pieces.begin(), pieces.end(), token);
    const int64_t id = piece == pieces.end() ? next++ : piece - pieces.begin();
    added.push_back(special_token_json(token, id));
    if (token == begin) post_processor = begin_template(token, id);
  }
  Json document = byte_level_json(std::move(vocab), std::move(merges), std::move(added), split);
  document["post_processor"] = std::move(post_processor);
  return document.dump(2) + "\n";
}

std::string tokenizer_json(const std::vector<TokenPair>& merges, std::string_view split_pattern) {
  return bpe_tokenizer_json(vocabulary_of(merges), {.pattern = split_pattern});
}

Json byte_level_json(Json vocab, Json merges, Json added_tokens, const WordSplit& split,
                     const ByteLevelFlags& flags) {
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", flags.ignore_merges}};
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);
  Json document = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  document["added_tokens"] = std::move(added_tokens);
  document["normalizer"] = nullptr;
  document["pre_tokenizer"] = pre_tokenizer_json(split, flags.add_prefix_space);
  document["post_processor"] = nullptr;
  document["decoder"] = byte_level(true, true);
  document["model"] = std::move(model);
  return document;
}

}  // namespace stepforge
