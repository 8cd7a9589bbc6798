// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/word_counts.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/random.h"
#include "stepforge/text/bpe_trainer.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// Text for several slices, with line breaks, spaces and every kind of piece.
std::string long_text() {
  const std::string_view parts[] = {
      "word",          " ",      "\n",   "\n\n", "  \n", "12345", ",",     "...\n",
      "\u00E9t\u00E9", "\u00A0", "it's", "\t",   "\r\n", " x",    "\u3000"};
  std::string text;
  for (uint64_t i = 0; text.size() < 5'000'000; ++i) text += parts[mix_bits(i) % std::size(parts)];
  return text;
}

TEST(WordCounter, CountsThePiecesOfThePattern) {
  WordCounter counter;
  counter.add("to be or not to be", "test");
  EXPECT_EQ(counter.counts(), (WordCounts{{"to", 1}, {" be", 2}, {" or", 1}, {" not", 1}, {" to", 1}}));
  EXPECT_EQ(counter.bytes(), 18);
}

TEST(WordCounter, SlicesLongTextsOnlyWhereThePatternSplits) {
  const std::string text = long_text();
  for (const std::string_view name : {"gpt2", "llama3", "qwen", "o200k", R"(\s+|[^\s]+)"}) {
    const std::string_view split = named_pattern(name);
    WordCounter counter({.split = {.pattern = split}, .workers = 4});
    counter.add(text, "test");
    const SplitPattern pattern(split, "test");
    SplitPattern::Scratch scratch;
    WordCounts expected;
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = pattern.piece_length(text, begin, scratch);
      ++expected[text.substr(begin, length)];
      begin += length;
    }
    EXPECT_EQ(counter.counts(), expected) << name;
  }
}

TEST(WordCounter, DigitsAreSplitBeforeThePattern) {
  const auto counts = [](DigitSplit digits) {
    WordCounter counter({.split = {.pattern = kGpt2Pattern, .digits = digits}});
    counter.add("a 12345", "test");
    return counter.counts();
  };
  EXPECT_EQ(counts(DigitSplit::by_pattern), (WordCounts{{"a", 1}, {" 12345", 1}}));
  EXPECT_EQ(counts(DigitSplit::one),
            (WordCounts{{"a", 1}, {" ", 1}, {"1", 1}, {"2", 1}, {"3", 1}, {"4", 1}, {"5", 1}}));
  EXPECT_EQ(counts(DigitSplit::three), (WordCounts{{"a", 1}, {" ", 1}, {"123", 1}, {"45", 1}}));
}

TEST(WordCounter, SpecialTokensSeparateToo) {
  WordCounter counter({.special_tokens = {"<s>", "</s>"}});
  counter.add("<s>ab</s>ab<|endoftext|>c", "test");
  EXPECT_EQ(counter.counts(), (WordCounts{{"ab", 2}, {"c", 1}}));
}

TEST(WordCounter, TheNumberOfThreadsDoesNotChangeTheCounts) {
  const std::string text = long_text();
  WordCounter one({.workers = 1});
  WordCounter many({.workers = 7});
  one.add(text, "test");
  many.add(text, "test");
  EXPECT_EQ(one.counts(), many.counts());
  EXPECT_EQ(train_bpe(one.counts(), {.vocab_size = 300}).vocabulary.merges,
            train_bpe(many.counts(), {.vocab_size = 300}).vocabulary.merges);
}

TEST(WordCounter, EndOfTextSeparatesAndIsNotCounted) {
  WordCounter counter;
  counter.add("ab<|endoftext|>cd<|endoftext|>", "test");
  EXPECT_EQ(counter.counts(), (WordCounts{{"ab", 1}, {"cd", 1}}));
}

TEST(WordCounter, AWordMayHaveAnyLength) {
  WordCounter counter;
  const std::string word(3'000'000, 'x');
  counter.add(word, "test");
  EXPECT_EQ(counter.counts(), (WordCounts{{word, 1}}));
}

TEST(WordCounter, RefusesTextThatIsNotUtf8) {
  WordCounter counter;
  EXPECT_CONTAINS(message_of<FormatError>([&] { return counter.add("ab\xFF", "a.txt"); }), "a.txt", "byte 2");
}

}  // namespace
}  // namespace stepforge::testing
