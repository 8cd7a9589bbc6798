// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/utf8.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(Utf8, AcceptsTheFirstAndLastCodePointOfEachLength) {
  for (const char32_t c :
       {0x0U, 0x7FU, 0x80U, 0x7FFU, 0x800U, 0xD7FFU, 0xE000U, 0xFFFFU, 0x10000U, 0x10FFFFU}) {
    std::string text;
    append_utf8(text, c);
    EXPECT_EQ(utf8_sequence_length(text), text.size());
    EXPECT_EQ(decode_code_point(text), c);
  }
}

TEST(Utf8, FindsTheFirstIllFormedByte) {
  const struct {
    std::string text;
    size_t offset;
  } cases[] = {{"abc\x80", 3},
               {"12345678\xFFz", 8},
               {"\xC0\x80", 0},
               {"x\xC1\xBF", 1},
               {"\xE0\x9F\xBF", 0},
               {"a\xED\xA0\x80", 1},
               {"\xF0\x8F\x80\x80", 0},
               {"\xF4\x90\x80\x80", 0},
               {"ok\xE4\xB8", 2},
               {"\xF5\x80\x80\x80", 0},
               {"\xC3(", 0}};
  for (const auto& test : cases) EXPECT_EQ(find_invalid_utf8(test.text), test.offset) << test.text;
  EXPECT_EQ(find_invalid_utf8("d\xC3\xA9j\xC3\xA0 vu, \xE4\xB8\x96\xE7\x95\x8C \xF0\x9F\x98\x80"),
            std::string_view::npos);
}

TEST(Utf8, IsCheckedAtEveryPlaceBetweenAscii) {
  for (size_t before = 0; before < 40; ++before) {
    for (const size_t after : {0, 1, 2, 20}) {
      const std::string ascii(before, 'a');
      const std::string rest(after, 'b');
      for (const std::string_view good : {"\u00E9", "\u20AC", "\uD7FF", "\U0001F600", "\u00E9\u6F22"}) {
        EXPECT_EQ(find_invalid_utf8(ascii + std::string(good) + rest), std::string_view::npos);
        EXPECT_EQ(ascii_prefix(ascii + std::string(good) + rest), before);
        EXPECT_EQ(ascii_prefix(ascii + rest), before + after);
      }
      for (const std::string_view bad : {"\x80", "\xC2", "\xC1\x80", "\xE2\x82", "\xE1\x80+", "\xED\xA0\x80"})
        EXPECT_EQ(find_invalid_utf8(ascii + std::string(bad) + rest), before);
    }
  }
}

TEST(Utf8, TheErrorNamesSourceOffsetAndByte) {
  EXPECT_CONTAINS(message_of<FormatError>([&] { return require_utf8("ab\xE9", "notes.txt"); }), "notes.txt",
                  "byte 2", "0xe9", "UTF-8");
  EXPECT_CONTAINS(message_of<FormatError>([&] { return require_utf8("ab\xE9", "notes.txt", 100); }),
                  "byte 102");
}

TEST(Utf8, OnlyAProperPrefixIsIncomplete) {
  EXPECT_TRUE(is_incomplete_utf8("\xF0\x9F\x98"));
  EXPECT_TRUE(is_incomplete_utf8("\xE4"));
  EXPECT_FALSE(is_incomplete_utf8("\xF0\x9F\x98\x80"));
  EXPECT_FALSE(is_incomplete_utf8("\xE0\x80"));
  EXPECT_FALSE(is_incomplete_utf8("\x80"));
  EXPECT_FALSE(is_incomplete_utf8("a"));
  EXPECT_FALSE(is_incomplete_utf8(""));
}

TEST(Utf8, QuotedTextHasNoControlBytesAndLimitedLength) {
  EXPECT_EQ(quoted_for_message("a\x1b[2J\n\xFF\xE4\xB8\x96"), "\"a\\x1B[2J\\x0A\\xFF\xE4\xB8\x96\"");
  EXPECT_EQ(quoted_for_message(std::string(200, 'n')), "\"" + std::string(100, 'n') + "...\"");
}

TEST(Printable, KeepsWhatCannotSteerATerminal) {
  const std::string text = "a\tb\nc \xC3\xA4 \xE2\x82\xAC \U0001F600";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable_line("a\tb\nc"), "a\\x09b\\x0Ac");
}

TEST(Printable, EscapesControlCharactersOfOneByteAndTwoAndBytesThatAreNotUtf8) {
  EXPECT_EQ(printable(std::string("\0\r\x1B]0;title\x07\x7F", 13)), "\\x00\\x0D\\x1B]0;title\\x07\\x7F");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J \xC2\xA0"),
            "\\x9B"
            "2J \xC2\xA0");
  EXPECT_EQ(printable("\x9B"
                      "2J \xE2\x82"),
            "\\x9B"
            "2J \\xE2\\x82");
}

}  // namespace
}  // namespace stepforge::testing
