// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/splitter.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/pattern_rewriter.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(std::string_view pattern, std::string_view text) {
  const SplitPattern compiled(pattern, "test");
  SplitPattern::Scratch scratch;
  Pieces pieces;
  for (size_t begin = 0; begin < text.size();) {
    const size_t length = compiled.piece_length(text, begin, scratch);
    pieces.emplace_back(text.substr(begin, length));
    begin += length;
  }
  return pieces;
}

TEST(Splitter, Llama3PatternSplitsAsPublished) {
  EXPECT_EQ(split(kLlama3Pattern, "She'd pay $12345,\n\n  we'LL see  "),
            (Pieces{"She", "'d", " pay", " $", "123", "45", ",\n\n", " ", " we", "'LL", " see", "  "}));
}

TEST(Splitter, Gpt2PatternKeepsRunsOfDigitsAndLowerCaseContractions) {
  EXPECT_EQ(split(kGpt2Pattern, "it's IT'S 12345  x"),
            (Pieces{"it", "'s", " IT", "'", "S", " 12345", " ", " x"}));
}

/// Characters that the known patterns treat differently, and random ones of all planes.
std::string random_text(std::mt19937& random) {
  static constexpr std::string_view kParts[] = {
      "a",      "Z",          "s",          "S",      "t",      "re",    "LL",     "Ve",     "d",
      "m",      "'",          "'",          "'s",     " ",      " ",     "  ",     "\n",     "\r",
      "\t",     "\v",         "1",          "23",     "9",      "-",     "\u017F", "\u00E9", "\u0301",
      "\u00A0", "\u3000",     "\u2028",     "!",      ".",      "\0",    "\x7F",   "\u00BD", "\u0663",
      "\u6F22", "\U0001F600", "\U00031350", "\u0085", "\u180E", "\uFB05"};
  std::string text;
  for (size_t left = random() % 24; left > 0; --left) {
    if (random() % 8 != 0) {
      text += kParts[random() % std::size(kParts)];
    } else if (const char32_t point = random() % 0x110000; point < 0xD800 || point >= 0xE000) {
      append_utf8(text, point);
    }
  }
  return text;
}

TEST(Splitter, ScannersFindThePiecesOfTheirRegularExpressions) {
  std::mt19937 random(7);
  SplitPattern::Scratch scratch;
  for (const std::string_view pattern : {kLlama3Pattern, kQwen2Pattern, kGpt2Pattern}) {
    ASSERT_NE(scanner_for(pattern), nullptr);
    const SplitPattern expression(pattern, "test", /*use_scanner=*/false);
    for (int i = 0; i < 40000; ++i) {
      const std::string text = random_text(random);
      for (size_t begin = 0; begin < text.size();) {
        const size_t length = expression.piece_length(text, begin, scratch);
        ASSERT_EQ(scanner_for(pattern)(text, begin), length)
            << quoted_for_message(text) << " at byte " << begin << " by " << pattern;
        begin += length;
      }
    }
  }
}

TEST(Splitter, ScannersKnowTheClassOfEveryCharacter) {
  SplitPattern::Scratch scratch;
  for (const std::string_view pattern : {kLlama3Pattern, kGpt2Pattern}) {
    const SplitPattern expression(pattern, "test", /*use_scanner=*/false);
    for (char32_t point = 0; point < 0x110000; ++point) {
      if (point >= 0xD800 && point < 0xE000) continue;
      std::string text;
      append_utf8(text, point);
      text += "a1 !";
      text += text;
      ASSERT_EQ(scanner_for(pattern)(text, 0), expression.piece_length(text, 0, scratch))
          << std::hex << +point;
    }
  }
}

TEST(Splitter, TextBetweenMatchesIsAPiece) {
  EXPECT_EQ(split("[0-9]+", "ab12c3d"), (Pieces{"ab", "12", "c", "3", "d"}));
}

TEST(Splitter, KnowsLettersAndDigitsOfUnicode16) {
  // CJK Extension H (15.0) and I (15.1), Kawi digits (15.0), Garay letters (16.0).
  EXPECT_EQ(split(kLlama3Pattern, "a\U00031350\U0002EBF0 \U00011F50\U00011F51!"),
            (Pieces{"a\U00031350\U0002EBF0", " ", "\U00011F50\U00011F51", "!"}));
  EXPECT_EQ(split(R"(\p{Lu}+)", "A\U00010D50b\U00010D70"), (Pieces{"A\U00010D50", "b\U00010D70"}));
  EXPECT_EQ(split(R"([^\p{L}]+)", "!\U00031350?"), (Pieces{"!", "\U00031350", "?"}));
  EXPECT_EQ(split(R"(\P{L}+)", "!\U00031350?"), (Pieces{"!", "\U00031350", "?"}));
}

TEST(Splitter, TheMongolianVowelSeparatorIsNotASpace) {
  EXPECT_EQ(split(R"(\s+)", "a \u180E\u3000b"), (Pieces{"a", " ", "\u180E", "\u3000", "b"}));
  EXPECT_EQ(split(R"([\S]+)", "a \u180E"), (Pieces{"a", " ", "\u180E"}));
  EXPECT_EQ(split(R"(\S+)", "a \u180E"), (Pieces{"a", " ", "\u180E"}));
}

TEST(Splitter, LongRunsTakeLinearTime) {
  EXPECT_EQ(split(kLlama3Pattern, std::string(20'000'000, ' ')).size(), 1U);
  EXPECT_EQ(split(kLlama3Pattern, std::string(20'000'000, 'x') + "!").size(), 2U);
  EXPECT_EQ(split(kLlama3Pattern, std::string(20'000'000, '\n') + "x").size(), 2U);
  EXPECT_EQ(split(kLlama3Pattern, std::string(20'000'000, '-')).size(), 1U);
}

TEST(Splitter, APatternThatBacktracksExponentiallyIsAnErrorThatNamesIt) {
  const SplitPattern pattern("(?:a+)+[bc]", "bad.json");
  SplitPattern::Scratch scratch;
  EXPECT_CONTAINS(message_of<Error>([&] { return pattern.piece_length(std::string(60, 'a'), 0, scratch); }),
                  "bad.json", "(?:a+)+[bc]", "byte 0", "limit");
}

/// Recorded with Oniguruma 6.9: lines end with "\n" alone, and the end of the text is one of a line too.
TEST(Splitter, AnchorsMeanTheEndsOfTheTextAndOfItsLines) {
  const auto pieces = [](const std::string& pattern, const std::string& text) {
    const SplitPattern split(pattern, "test");
    SplitPattern::Scratch scratch;
    Pieces found;
    for (size_t at = 0; at < text.size(); at += found.back().size())
      found.push_back(text.substr(at, split.piece_length(text, at, scratch)));
    return found;
  };
  EXPECT_EQ(pieces(R"([a-z]+$|[a-z])", "ab\nab"), (Pieces{"ab", "\n", "ab"}));
  EXPECT_EQ(pieces(R"([a-z]+\z|[a-z])", "ab\nab"), (Pieces{"a", "b", "\n", "ab"}));
  EXPECT_EQ(pieces(R"([a-z]+\Z|[a-z])", "ab\nab\n"), (Pieces{"a", "b", "\n", "ab", "\n"}));
  EXPECT_EQ(pieces(R"(^[a-z]+|[a-z])", "ab ab\nab"), (Pieces{"ab", " ", "a", "b", "\n", "ab"}));
  EXPECT_EQ(pieces(R"(\A[a-z]+|[a-z])", "ab\nab"), (Pieces{"ab", "\n", "a", "b"}));
}

TEST(Splitter, RefusesSyntaxThatCannotBeTranslatedFromOniguruma) {
  const std::string_view refused[] = {
      "^*a",      "a$+",     R"(\bword)", R"(\w+)",      R"(\h)",     R"(\p{Han}+)", R"(\p{^L})",
      R"(\pL)",   "(?i)a",   "(?m:a)",    "(?<name>a)",  "(*FAIL)",   "[[:alpha:]]", "[a[bc]]",
      "[a&&b]",   "[]a]",    "[-a]",      R"([\P{L}])",  R"([a-\s])", R"([\s-z])",   "a{2}+",
      "a{2}?",    "a{,3}",   "{",         "(?i:\u00E9)", "(?i:ss)",   "(?i:[a])",    R"(\x41)",
      R"((a)\1)", R"(\p{L)", R"(\x{41)",  "[a",          ")",         R"([\h])",     R"(\u0041)"};
  for (const std::string_view pattern : refused) {
    EXPECT_CONTAINS(message_of<FormatError>([&] { return rewrite_pattern(pattern, "x/tokenizer.json"); }),
                    "x/tokenizer.json", "not supported")
        << pattern;
  }
}

TEST(Splitter, RefusesPatternsThatDoNotCompileOrMatchNothing) {
  EXPECT_CONTAINS(message_of<FormatError>([&] { return SplitPattern("(a", "t.json"); }), "t.json", "(a");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return SplitPattern("a*", "t.json"); }), "t.json",
                  "empty string");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return SplitPattern("+", "t.json"); }), "t.json");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return SplitPattern(std::string(5000, 'a'), "t.json"); }),
                  "5000 bytes");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return SplitPattern(std::string(2000, '('), "t.json"); }),
                  "t.json");
}

}  // namespace
}  // namespace stepforge::testing
