// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/piece_blocks.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/utf8.h"
#include "stepforge/text/known_patterns.h"
#include "stepforge/text/splitter.h"

namespace stepforge::testing {
namespace {

constexpr std::string_view kPatterns[] = {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern};

/// Characters of every class and length, and what patterns treat in a special way.
constexpr std::string_view kTricky[] = {"a",           "Zebra",
                                        "s",           "'s",
                                        "'S",          "'re",
                                        "'LL",         "'ve",
                                        "'\u017F",     "'",
                                        "''",          " '",
                                        " ",           "  ",
                                        "   ",         "\n",
                                        "\n\n",        "\r\n",
                                        "\t",          " \n",
                                        "\n ",         ".\n",
                                        ".\n\n ",      "\n \n",
                                        "1",           "1234",
                                        "1234567",     "-",
                                        "--",          " -",
                                        ".a",          "..a",
                                        " .a",         "\u00E9",
                                        "\u0301",      "\u00A0",
                                        "\u00A0\n",    "\u3000",
                                        "\u3000a",     "\u2028",
                                        "\u0663",      "\u0663\u0663\u0663\u0663",
                                        "\u6F22",      "\u3002",
                                        "\u3002a",     "\U0001F600",
                                        "\U0001F600a", "\U00031350",
                                        "\U0001D7D8",  "\u0085",
                                        "\x7F",        "\u201Cquoted\u201D"};

std::vector<size_t> ends_by_scanner(std::string_view pattern, std::string_view text) {
  std::vector<size_t> ends;
  for (size_t begin = 0; begin < text.size(); begin = ends.back())
    ends.push_back(begin + scanner_for(pattern)(text, begin));
  return ends;
}

std::vector<size_t> ends_by_blocks(const SplitPattern& split, std::string_view text) {
  SplitPattern::Scratch scratch;
  std::vector<size_t> all;
  split.for_each_pieces(text, scratch, [&](std::string_view rest, std::span<const size_t> ends) {
    for (const size_t end : ends) all.push_back(text.size() - rest.size() + end);
  });
  return all;
}

void expect_same_pieces(const std::string& text) {
  static const std::vector<SplitPattern> splits = [] {
    std::vector<SplitPattern> compiled;
    for (const std::string_view pattern : kPatterns) compiled.emplace_back(pattern, "test");
    return compiled;
  }();
  for (size_t i = 0; i < splits.size(); ++i) {
    const std::string_view pattern = kPatterns[i];
    ASSERT_EQ(ends_by_blocks(splits[i], text), ends_by_scanner(pattern, text))
        << quoted_for_message(text) << " of " << text.size() << " bytes by " << pattern;
  }
}

std::string random_text(std::mt19937& random, size_t parts) {
  std::string text;
  while (parts-- > 0) text += kTricky[random() % std::size(kTricky)];
  return text;
}

TEST(PieceBlocks, PiecesAreThoseOfTheScanners) {
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) expect_same_pieces(random_text(random, random() % 60));
  for (int i = 0; i < 100; ++i) expect_same_pieces(random_text(random, 3000));
}

TEST(PieceBlocks, WordsOfBitsAndBlocksHaveNoBorders) {
  std::mt19937 random(12);
  for (const size_t border : {size_t{64}, size_t{128}, ByteBits::kBytes}) {
    for (size_t before = border - 12; before <= border + 2; ++before) {
      for (const std::string_view tricky : kTricky) {
        for (const std::string_view filler : {"x", " ", "7", "\n"}) {
          std::string text;
          while (text.size() < before) text += filler;
          text.resize(before);
          text += tricky;
          text += random_text(random, 3);
          expect_same_pieces(text);
        }
      }
    }
  }
}

TEST(PieceBlocks, APieceMayBeLongerThanABlock) {
  for (const std::string_view filler : {"x", " ", ".", "7", "\n", " \n", "\u00E9", "\u3000", "\u0663"}) {
    std::string text = "a ";
    while (text.size() < 3 * ByteBits::kBytes) text += filler;
    expect_same_pieces(text);
    expect_same_pieces(text + "b");
    expect_same_pieces(text + "\n.");
  }
}

TEST(PieceBlocks, OnlyCertainEndsAreGiven) {
  PieceEnds ends;
  block_scanner_for(kGpt2Pattern)(std::string(2 * ByteBits::kBytes, 'x'), ends);
  EXPECT_EQ(ends.count, 0U);
  block_scanner_for(kGpt2Pattern)("a" + std::string(2 * ByteBits::kBytes, ' '), ends);
  ASSERT_EQ(ends.count, 1U);
  EXPECT_EQ(ends.ends[0], 1U);
  block_scanner_for(kLlama3Pattern)("a\n" + std::string(2 * ByteBits::kBytes, ' '), ends);
  ASSERT_EQ(ends.count, 1U);  // a line break may follow, to which all white space belongs
  EXPECT_EQ(block_scanner_for(kGpt4oPattern), nullptr);
}

}  // namespace
}  // namespace stepforge::testing
