// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_model.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "stepforge/base/random.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

/// The simplest implementation: apply the lowest rank, leftmost first, then look at all pairs again.
std::vector<int32_t> merge_slowly(const BpeDefinition& definition, std::string_view word) {
  std::vector<int32_t> symbols;
  for (const char byte : word) symbols.push_back(static_cast<uint8_t>(byte));
  while (true) {
    size_t best_rank = std::numeric_limits<size_t>::max();
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = std::find(definition.merges.begin(), definition.merges.end(),
                                   token_pair(symbols[i], symbols[i + 1]));
      const auto rank = static_cast<size_t>(found - definition.merges.begin());
      if (found != definition.merges.end() && rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == std::numeric_limits<size_t>::max()) return symbols;
    symbols[best] = definition.merged_ids[best_rank];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

BpeDefinition definition_with(const std::vector<TokenPair>& merges) {
  const Json json = Json::parse(tokenizer_json(merges, ""));
  return BpeDefinition(JsonReader(json["model"], "test", "model"));
}

std::vector<int32_t> word_ids(const Model& model, std::string_view word) {
  std::vector<int32_t> ids;
  model.append_word(word, ids);
  return ids;
}

TEST(BpeModel, TheLowestRankMergesFirst) {
  // "b c" has a lower rank than "a b": in "abc" it wins although "a b" is further left.
  const ByteBpeModel model(definition_with({token_pair('b', 'c'), token_pair('a', 'b')}));
  EXPECT_EQ(word_ids(model, "abc"), (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(word_ids(model, "abab"), (std::vector<int32_t>{257, 257}));
}

TEST(BpeModel, OfEqualRanksTheLeftmostMergesFirst) {
  const ByteBpeModel model(definition_with({token_pair('a', 'a')}));
  EXPECT_EQ(word_ids(model, "aaa"), (std::vector<int32_t>{256, 'a'}));
}

TEST(BpeModel, ShortAndLongWordsFollowTheSameRule) {
  // Merges over a small alphabet, so that they overlap and compete; words on both sides of the switch to the
  // heap.
  const BpeDefinition definition = definition_with(
      {token_pair('a', 'a'), token_pair('b', 'a'), token_pair(256, 'b'), token_pair(257, 257),
       token_pair('b', 'b'), token_pair(256, 256), token_pair(258, 259), token_pair(261, 'a')});
  const ByteBpeModel model(definition);
  const ByteBpeModel in_rounds(definition, 2);
  for (uint64_t round = 0; round < 2000; ++round) {
    std::string word;
    const uint64_t length = 1 + mix_bits(round) % 120;
    for (uint64_t i = 0; i < length; ++i) word.push_back("aab"[mix_bits(round * 1000 + i) % 3]);
    const std::vector<int32_t> expected = merge_slowly(definition, word);
    EXPECT_EQ(word_ids(model, word), expected) << word;
    EXPECT_EQ(word_ids(in_rounds, word), expected) << word;
  }
}

TEST(BpeModel, IgnoreMergesEncodesAWordThatIsATokenAsThatToken) {
  BpeDefinition definition =
      definition_with({token_pair('b', 'c'), token_pair('a', 'b'), token_pair(257, 'c')});
  EXPECT_EQ(word_ids(ByteBpeModel(definition), "abc"), (std::vector<int32_t>{'a', 256}));
  definition.ignore_merges = true;
  EXPECT_EQ(word_ids(ByteBpeModel(definition), "abc"), (std::vector<int32_t>{258}));
  EXPECT_EQ(word_ids(ByteBpeModel(definition), "abcx"), (std::vector<int32_t>{'a', 256, 'x'}));
}

}  // namespace
}  // namespace stepforge::testing
