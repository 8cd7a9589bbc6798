// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/text_pattern.h"

#include <cctype>

#include "stepforge/base/utf8.h"

namespace stepforge {

std::string literal_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) != 0 && static_cast<unsigned char>(c) < 0x80)
      pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::string read_character(const JsonReader& value) {
  const std::string& text = value.text();
  if (text.empty() || utf8_sequence_length(text) != text.size()) value.refuse("one character is expected");
  return text;
}

SplitPattern read_text_pattern(const JsonReader& pattern) {
  pattern.only_keys({"Regex", "String"});
  // The path of the value, for the errors of the regular expression.
  const std::string where = pattern.source() + ": " + pattern.path();
  if (pattern.has("Regex")) {
    if (pattern.has("String")) pattern.refuse("either \"Regex\" or \"String\" is expected");
    return {pattern["Regex"].text(), where};
  }
  return {literal_pattern(pattern["String"].text()), where};
}

}  // namespace stepforge
