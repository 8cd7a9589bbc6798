// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/byte_alphabet.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(ByteAlphabet, WritesEachByteAsOneOfThe256CharactersOfGpt2) {
  EXPECT_EQ(to_byte_alphabet(" a\n"),
            "\xC4\xA0"
            "a"
            "\xC4\x8A");  // U+0120 and U+010A
  EXPECT_EQ(to_byte_alphabet(std::string("\x00\xAD\xFF", 3)), "\xC4\x80\xC5\x83\xC3\xBF");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    EXPECT_EQ(from_byte_alphabet(to_byte_alphabet(bytes)), bytes);
  }
}

TEST(ByteAlphabet, RefusesOtherCharacters) {
  EXPECT_EQ(from_byte_alphabet("a b"), std::nullopt);
  EXPECT_EQ(from_byte_alphabet("\xE4\xB8\x96"), std::nullopt);
  EXPECT_EQ(from_byte_alphabet("\xC5\x84"), std::nullopt);  // U+0144, one past the end
}

}  // namespace
}  // namespace stepforge::testing
