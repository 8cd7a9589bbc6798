// SPDX-License-Identifier: Apache-2.0
// The classes of characters that patterns of byte-level BPE distinguish: letters, numbers, white space, others.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stepforge/base/utf8.h"

namespace stepforge {

/// \p{L}, \p{N}, \s without line breaks, [\r\n], and the rest, as rewrite_pattern() translates them.
enum class CharacterClass : uint8_t { other, letter, number, space, line_break };

constexpr CharacterClass ascii_class(char byte) {
  if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z')) return CharacterClass::letter;
  if (byte >= '0' && byte <= '9') return CharacterClass::number;
  if (byte == '\r' || byte == '\n') return CharacterClass::line_break;
  if (byte == ' ' || byte == '\t' || byte == '\v' || byte == '\f') return CharacterClass::space;
  return CharacterClass::other;
}

inline constexpr auto kAsciiClasses = [] {
  std::array<CharacterClass, 128> classes{};
  for (size_t byte = 0; byte < classes.size(); ++byte) classes[byte] = ascii_class(static_cast<char>(byte));
  return classes;
}();

/// The class of a code point. The first call makes the table, which takes about 20 ms.
CharacterClass class_of_code_point(char32_t code_point);

struct ClassifiedCharacter {
  CharacterClass kind = CharacterClass::other;
  uint32_t length = 0;  ///< in bytes
};

/// The character at `position` of valid UTF-8.
inline ClassifiedCharacter character_at(std::string_view text, size_t position) {
  const auto byte = static_cast<uint8_t>(text[position]);
  if (byte < 0x80) return {kAsciiClasses[byte], 1};
  const uint32_t length = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  return {class_of_code_point(decode_code_point(text.substr(position))), length};
}

}  // namespace stepforge
