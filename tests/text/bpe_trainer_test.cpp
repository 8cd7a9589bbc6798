// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <optional>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/json.h"
#include "stepforge/base/random.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Merges = std::vector<TokenPair>;

Merges merges_of(const TrainedBpe& trained) {
  return trained.vocabulary.merges;
}

/// The simplest implementation: count all pairs again for each merge. Nothing where two pairs make the same token.
std::optional<Merges> train_slowly(const WordCounts& counts, int32_t vocab_size) {
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
    const auto best = std::max_element(pairs.begin(), pairs.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == pairs.end() || best->second < 2) break;
    const int32_t left = left_token(best->first);
    const int32_t right = right_token(best->first);
    std::string text = tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
    if (std::find(tokens.begin(), tokens.end(), text) != tokens.end()) return std::nullopt;
    merges.push_back(best->first);
    const auto id = static_cast<int32_t>(tokens.size());
    tokens.push_back(std::move(text));
    for (auto& [word, count] : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != left || word[i + 1] != right) continue;
        word[i] = id;
        word.erase(word.begin() + static_cast<ptrdiff_t>(i) + 1);
      }
    }
  }
  return merges;
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const WordCounts counts = {{"ab", 3}, {"cd", 5}, {"abc", 1}};
  EXPECT_EQ(merges_of(train_bpe(counts, {.vocab_size = 258})), (Merges{token_pair('c', 'd')}));
  EXPECT_EQ(merges_of(train_bpe(counts, {.vocab_size = 259})),
            (Merges{token_pair('c', 'd'), token_pair('a', 'b')}));
}

TEST(BpeTrainer, OfEquallyFrequentPairsTheSmallestIdsWin) {
  const WordCounts counts = {{"xy", 4}, {"bz", 4}, {"ba", 4}};
  EXPECT_EQ(merges_of(train_bpe(counts, {.vocab_size = 260})),
            (Merges{token_pair('b', 'a'), token_pair('b', 'z'), token_pair('x', 'y')}));
}

TEST(BpeTrainer, AgreesWithCountingAgainForEachMerge) {
  int compared = 0;
  for (uint64_t round = 0; round < 60; ++round) {
    WordCounts counts;
    for (uint64_t w = 0; w < 30; ++w) {
      std::string word;
      const uint64_t length = 1 + mix_bits(round * 31 + w) % 14;
      for (uint64_t i = 0; i < length; ++i) word.push_back("aabbc"[mix_bits(round * 7919 + w * 101 + i) % 5]);
      counts[word] += static_cast<int64_t>(1 + mix_bits(w + round) % 20);
    }
    const std::optional<Merges> expected = train_slowly(counts, 320);
    if (!expected) continue;
    ++compared;
    const TrainedBpe trained = train_bpe(counts, {.vocab_size = 320});
    EXPECT_EQ(merges_of(trained), *expected) << "round " << round;
    EXPECT_EQ(trained.vocab_size, 257 + std::ssize(*expected));
  }
  EXPECT_GE(compared, 30);
}

TEST(BpeTrainer, StopsWhenNoPairOccursTwice) {
  const TrainedBpe trained = train_bpe({{"abab", 1}, {"xyz", 1}}, {.vocab_size = 1000});
  EXPECT_EQ(merges_of(trained), (Merges{token_pair('a', 'b')}));
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

TEST(BpeTrainer, BytesAreOrderedAsInTheByteAlphabet) {
  // The space is U+0120 there, behind all letters.
  EXPECT_EQ(merges_of(train_bpe({{" a", 4}, {"xy", 4}}, {.vocab_size = 258})),
            (Merges{token_pair('x', 'y')}));
}

TEST(BpeTrainer, ALongWordIsMergedInTimeThatFollowsItsLength) {
  // Each merge visits its places only: a megabyte of pairs that differ, and one pair that recurs.
  std::string word;
  for (uint64_t i = 0; word.size() < 300'000; ++i) word += static_cast<char>('a' + mix_bits(i) % 26);
  EXPECT_EQ(train_bpe({{word, 1}}, {.vocab_size = 3000}).vocab_size, 3000);
}

TEST(BpeTrainer, SpecialTokensHaveTheFirstIdsInTheirOrder) {
  const BpeRecipe recipe{
      .vocab_size = 260, .special_tokens = {"<s>", "</s>"}, .eos_token = "</s>", .bos_token = "<s>"};
  const BpeTraining training(recipe);
  const auto tokenizer = training.tokenizer(training.train({{"ab", 9}}));
  EXPECT_EQ(tokenizer->encode("<s>ab</s>"), (std::vector<int32_t>{0, 258, 1}));
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->special_tokens().before, (std::vector<int32_t>{0}));
  const TempFolder folder;
  tokenizer->save_pretrained(folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->fingerprint(), tokenizer->fingerprint());
}

// Recorded by tools/oracle/make_trainer_golden.py.
TEST(BpeTrainer, LearnsTheMergesOfHuggingFacesTrainer) {
  const Json golden = read_json_file(source_dir() / "tests/golden/text/trainer.json");
  ASSERT_GE(golden["cases"].size(), 20U);
  for (const Json& test : golden["cases"]) {
    const BpeRecipe recipe{.vocab_size = test["vocab_size"].get<int32_t>(),
                           .min_frequency = test["min_frequency"].get<int64_t>(),
                           .special_tokens = test["special_tokens"].get<std::vector<std::string>>(),
                           .eos_token = test["special_tokens"].empty() ? "" : test["special_tokens"][0],
                           .pattern = test["pattern"].get<std::string>(),
                           .digits = test["digits"].get<std::string>()};
    const BpeTraining training(recipe);
    WordCounter counter(training.counting());
    counter.add(test["text"].get<std::string>(), "test");
    const ByteLevelVocabulary vocabulary = training.train(counter.counts()).vocabulary;
    std::vector<std::string> merges;
    for (const TokenPair pair : vocabulary.merges) {
      merges.push_back(vocabulary.pieces[static_cast<size_t>(left_token(pair))] + " " +
                       vocabulary.pieces[static_cast<size_t>(right_token(pair))]);
    }
    EXPECT_EQ(merges, test["merges"].get<std::vector<std::string>>());
    const auto first = static_cast<ptrdiff_t>(256 + recipe.special_tokens.size());
    EXPECT_EQ(std::vector<std::string>(vocabulary.pieces.begin() + first, vocabulary.pieces.end()),
              test["learned"].get<std::vector<std::string>>());
  }
}

TEST(BpeTrainer, RefusesARecipeThatContradictsItself) {
  const auto message = [](const BpeRecipe& recipe) {
    return message_of<UsageError>([&] { const BpeTraining training(recipe); });
  };
  EXPECT_CONTAINS(message({.special_tokens = {"<s>"}}), "eos_token", "<|endoftext|>", "<s>");
  EXPECT_CONTAINS(message({.eos_token = "</s>"}), "eos_token", "</s>", "<|endoftext|>");
  EXPECT_CONTAINS(message({.bos_token = "<s>"}), "bos_token", "<s>");
  EXPECT_CONTAINS(message({.special_tokens = {"<|endoftext|>", ""}}), "empty");
  EXPECT_CONTAINS(message({.special_tokens = {"<s>", "<s>"}, .eos_token = "<s>"}), "<s>", "twice");
  EXPECT_CONTAINS(message({.vocab_size = 257, .special_tokens = {"<s>", "</s>"}, .eos_token = "</s>"}), "257",
                  "258", "2 special tokens");
  EXPECT_CONTAINS(message({.pattern = "llama2"}), "llama2", "gpt2", "o200k");
  EXPECT_CONTAINS(message({.digits = "two"}), "two", "three");
}

}  // namespace
}  // namespace stepforge::testing
