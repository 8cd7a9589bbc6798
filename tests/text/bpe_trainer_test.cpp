// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_trainer.h"

#include <map>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/random.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Merges = std::vector<TokenPair>;

/// The simplest implementation: count all pairs again for each merge.
Merges train_slowly(const WordCounts& counts, int32_t vocab_size) {
  std::vector<std::pair<std::vector<int32_t>, int64_t>> words;
  for (const auto& [text, count] : counts) {
    words.emplace_back();
    for (const char byte : text) words.back().first.push_back(static_cast<uint8_t>(byte));
    words.back().second = count;
  }
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  Merges merges;
  while (std::ssize(tokens) + 1 < vocab_size) {
    std::map<TokenPair, int64_t> pairs;
    for (const auto& [word, count] : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) pairs[token_pair(word[i], word[i + 1])] += count;
    }
    TokenPair best = 0;
    int64_t most = 1;
    for (const auto& [pair, count] : pairs) {
      const std::string text =
          tokens[static_cast<size_t>(left_token(pair))] + tokens[static_cast<size_t>(right_token(pair))];
      if (count > most && std::find(tokens.begin(), tokens.end(), text) == tokens.end()) {
        best = pair;
        most = count;
      }
    }
    if (most == 1) break;
    merges.push_back(best);
    const auto id = static_cast<int32_t>(tokens.size());
    tokens.push_back(tokens[static_cast<size_t>(left_token(best))] +
                     tokens[static_cast<size_t>(right_token(best))]);
    for (auto& [word, count] : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (token_pair(word[i], word[i + 1]) != best) continue;
        word[i] = id;
        word.erase(word.begin() + static_cast<ptrdiff_t>(i) + 1);
      }
    }
  }
  return merges;
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const WordCounts counts = {{"ab", 3}, {"cd", 5}, {"abc", 1}};
  EXPECT_EQ(train_bpe(counts, {.vocab_size = 258}).merges, (Merges{token_pair('c', 'd')}));
  EXPECT_EQ(train_bpe(counts, {.vocab_size = 259}).merges,
            (Merges{token_pair('c', 'd'), token_pair('a', 'b')}));
}

TEST(BpeTrainer, OfEquallyFrequentPairsTheSmallestIdsWin) {
  const WordCounts counts = {{"xy", 4}, {"bz", 4}, {"ba", 4}};
  EXPECT_EQ(train_bpe(counts, {.vocab_size = 260}).merges,
            (Merges{token_pair('b', 'a'), token_pair('b', 'z'), token_pair('x', 'y')}));
}

TEST(BpeTrainer, AgreesWithCountingAgainForEachMerge) {
  for (uint64_t round = 0; round < 60; ++round) {
    WordCounts counts;
    for (uint64_t w = 0; w < 30; ++w) {
      std::string word;
      const uint64_t length = 1 + mix_bits(round * 31 + w) % 14;
      for (uint64_t i = 0; i < length; ++i) word.push_back("aabbc"[mix_bits(round * 7919 + w * 101 + i) % 5]);
      counts[word] += static_cast<int64_t>(1 + mix_bits(w + round) % 20);
    }
    const TrainedBpe trained = train_bpe(counts, {.vocab_size = 320});
    EXPECT_EQ(trained.merges, train_slowly(counts, 320)) << "round " << round;
    EXPECT_EQ(trained.vocab_size, 257 + std::ssize(trained.merges));
  }
}

TEST(BpeTrainer, StopsWhenNoPairOccursTwice) {
  const TrainedBpe trained = train_bpe({{"abab", 1}, {"xyz", 1}}, {.vocab_size = 1000});
  EXPECT_EQ(trained.merges, (Merges{token_pair('a', 'b')}));
  EXPECT_EQ(trained.vocab_size, 258);
  EXPECT_EQ(train_bpe({}, {.vocab_size = 1000}).vocab_size, 257);
  EXPECT_EQ(train_bpe({{"xyz", 1}}, {.vocab_size = 1000, .min_pair_count = 1}).vocab_size, 259);
}

TEST(BpeTrainer, RefusesAVocabularySmallerThanTheBytesOrAbsurdlyLarge) {
  EXPECT_CONTAINS(message_of<UsageError>([&] { return train_bpe({{"ab", 9}}, {.vocab_size = 256}); }),
                  "vocab_size 256", "257");
  EXPECT_CONTAINS(message_of<UsageError>([&] { return train_bpe({{"ab", 9}}, {.vocab_size = 2'000'000}); }),
                  "2000000");
  EXPECT_EQ(train_bpe({{"ab", 9}}, {.vocab_size = 257}).vocab_size, 257);
}

TEST(BpeTrainer, TheTokenizerEncodesByTheLearnedMerges) {
  WordCounter counter;
  counter.add("low low low lower lower newest newest newest newest widest widest", "test");
  const TrainedBpe trained = train_bpe(counter.counts(), {.vocab_size = 280});
  const auto tokenizer = make_bpe_tokenizer(trained);
  EXPECT_EQ(tokenizer->vocab_size(), trained.vocab_size);
  EXPECT_EQ(tokenizer->eos_id(), trained.vocab_size - 1);
  EXPECT_EQ(tokenizer->encode(" newest").size(), 1U);
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->encode(" newest")[0]), " newest");
}

}  // namespace
}  // namespace stepforge::testing
