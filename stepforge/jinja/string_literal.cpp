// SPDX-License-Identifier: Apache-2.0
// The escapes of string literals.
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
  if ((letter >= '0' && letter <= '7') || letter == 'N' || static_cast<unsigned char>(letter) >= 0x80) {
    fail_unsupported_at(line, "an escape in a string with digits, \\N or a character beyond ASCII",
                        "write \\x or \\u and the code point, or \\\\ for a backslash");
  }
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
