// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/tokenizer_json.h"

#include <cstdint>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/text/byte_alphabet.h"
#include "stepforge/text/splitter.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

namespace {

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json pre_tokenizer(std::string_view split_pattern, bool add_prefix_space) {
  if (split_pattern.empty()) return byte_level(add_prefix_space, false);
  // Its own pattern, which comes after the space.
  if (split_pattern == kGpt2Pattern) return byte_level(add_prefix_space, true);
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", std::string(split_pattern)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false, false)})}};
}

Json added_token(size_t id) {
  return {{"id", id},
          {"content", std::string(kEndOfText)},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", true}};
}

}  // namespace

std::string tokenizer_json(const std::vector<TokenPair>& merges, std::string_view split_pattern) {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte)
    pieces.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
  Json merge_list = Json::array();
  for (const TokenPair pair : merges) {
    const std::string left = pieces.at(static_cast<size_t>(left_token(pair)));
    const std::string right = pieces.at(static_cast<size_t>(right_token(pair)));
    merge_list.push_back(format("{} {}", left, right));
    pieces.push_back(left + right);
  }
  Json vocab = Json::object();
  for (size_t id = 0; id < pieces.size(); ++id) append_member(vocab, pieces[id], id);
  return byte_level_json(std::move(vocab), std::move(merge_list), Json::array({added_token(pieces.size())}),
                         {.pattern = split_pattern})
             .dump(2) +
         "\n";
}

Json byte_level_json(Json vocab, Json merges, Json added_tokens, const ByteLevelOptions& options) {
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", options.ignore_merges}};
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);
  Json document = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  document["added_tokens"] = std::move(added_tokens);
  document["normalizer"] = nullptr;
  document["pre_tokenizer"] = pre_tokenizer(options.pattern, options.add_prefix_space);
  document["post_processor"] = nullptr;
  document["decoder"] = byte_level(true, true);
  document["model"] = std::move(model);
  return document;
}

}  // namespace stepforge
