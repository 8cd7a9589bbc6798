// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/string_literal.h"

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/lexer.h"

namespace stepforge::jinja {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/// Appends the code point of `digits` hexadecimal digits at `at`.
void append_hex(std::string& result, std::string_view literal, size_t at, size_t digits, int line) {
  char32_t value = 0;
  for (size_t i = at; i < at + digits; ++i) {
    const int digit = i < literal.size() ? hex_digit(literal[i]) : -1;
    if (digit < 0) fail_syntax(line, format("an escape in a string has fewer than {} digits", digits));
    value = value * 16 + static_cast<char32_t>(digit);
  }
  if (value > 0x10FFFF) fail_syntax(line, "an escape in a string lies beyond U+10FFFF");
  if (value >= 0xD800 && value < 0xE000) {
    fail_unsupported_at(line, "an escape in a string is half of a pair (a surrogate)",
                        "write \\U and the whole code point");
  }
  append_utf8(result, value);
}

size_t append_octal(std::string& result, std::string_view literal, size_t at) {
  char32_t value = 0;
  size_t end = at;
  while (end < literal.size() && end < at + 3 && literal[end] >= '0' && literal[end] <= '7') {
    value = value * 8 + static_cast<char32_t>(literal[end++] - '0');
  }
  append_utf8(result, value);
  return end;
}

/// Python turns a character beyond ASCII into an escape before it looks for escapes, so a backslash before it
/// stands for itself and the escape for its letters.
size_t append_spelled(std::string& result, std::string_view literal, size_t at) {
  const char32_t c = decode_code_point(literal.substr(at));
  result += '\\';
  result += c < 0x100     ? format("x{:02x}", static_cast<uint32_t>(c))
            : c < 0x10000 ? format("u{:04x}", static_cast<uint32_t>(c))
                          : format("U{:08x}", static_cast<uint32_t>(c));
  return at + utf8_sequence_length(literal.substr(at));
}

/// Handles the escape whose letter is at `at`; returns where it ends.
size_t append_escape(std::string& result, std::string_view literal, size_t at, int line) {
  static constexpr std::string_view kLetters = "\\'\"abfnrtv";
  static constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
  const char letter = literal[at];
  if (const size_t i = kLetters.find(letter); i != std::string_view::npos) {
    result += kValues[i];
    return at + 1;
  }
  if (letter == '\n') return at + 1;
  if (letter >= '0' && letter <= '7') return append_octal(result, literal, at);
  if (static_cast<unsigned char>(letter) >= 0x80) return append_spelled(result, literal, at);
  if (letter == 'N') fail_unsupported_at(line, "the escape \\N in a string", "write \\u and the code point");
  const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
  if (digits == 0) {
    result += '\\';
    result += letter;
    return at + 1;
  }
  append_hex(result, literal, at + 1, digits, line);
  return at + 1 + digits;
}

}  // namespace

std::string unescaped(std::string_view literal, int line) {
  std::string result;
  for (size_t at = 0; at < literal.size();) {
    if (literal[at] != '\\') {
      result += literal[at++];
    } else {
      at = append_escape(result, literal, at + 1, line);
    }
  }
  return result;
}

}  // namespace stepforge::jinja
