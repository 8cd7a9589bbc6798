// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/text/bpe_model.h"

namespace stepforge {

namespace {

/// "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> merge_parts(const JsonReader& merge) {
  if (merge.json().is_array()) {
    if (merge.size() != 2) merge.refuse("a merge has two parts");
    return {merge.at(0).text(), merge.at(1).text()};
  }
  const std::string_view text = merge.text();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    merge.refuse("a merge has two parts with one space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const JsonReader& merges, BpeDefinition& definition) {
  const auto id_of = [&](const JsonReader& merge, std::string_view piece) {
    const auto id = definition.vocabulary->find(piece);
    if (!id) merge.refuse(format("{} is not in the vocabulary", json_excerpt(Json(piece))));
    return *id;
  };
  definition.merges.reserve(merges.size());
  PairMap<bool> seen(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const JsonReader merge = merges.at(i);
    // The first line of a merges.txt, which Hugging Face skips here too.
    if (merge.json().is_string() && merge.text().starts_with("#version")) continue;
    const auto [left, right] = merge_parts(merge);
    if (right.size() < definition.prefix.size())
      merge.refuse("its second part is shorter than continuing_subword_prefix");
    const TokenPair pair = token_pair(id_of(merge, left), id_of(merge, right));
    if (std::exchange(seen[pair], true)) merge.refuse("the same merge is earlier in the list");
    definition.merges.push_back(pair);
    definition.merged_ids.push_back(
        id_of(merge, std::string(left) + std::string(right.substr(definition.prefix.size()))));
  }
}

}  // namespace

BpeDefinition::BpeDefinition(const JsonReader& model) {
  model.only_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                   "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("dropout") && model["dropout"].number() != 0.0)
    model["dropout"].refuse("only null is supported");
  if (model.has("unk_token")) unk_token = model["unk_token"].text();
  fuse_unk = model.boolean_or("fuse_unk", false);
  byte_fallback = model.boolean_or("byte_fallback", false);
  ignore_merges = model.boolean_or("ignore_merges", false);
  prefix = model.text_or("continuing_subword_prefix", "");
  suffix = model.text_or("end_of_word_suffix", "");
  vocabulary = std::make_shared<Vocabulary>(model["vocab"]);
  read_merges(model["merges"], *this);
}

}  // namespace stepforge
