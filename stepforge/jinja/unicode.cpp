// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/unicode.h"

#include <algorithm>

#include <utf8proc.h>

#include "stepforge/base/utf8.h"

namespace stepforge::jinja {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

using SimpleCase = utf8proc_int32_t (*)(utf8proc_int32_t);

char32_t mapped(char32_t c, SimpleCase simple) {
  return static_cast<char32_t>(simple(static_cast<utf8proc_int32_t>(c)));
}

/// Unicode's full case folding of a character other than an upper case letter. Several code points for ß, ligatures and some accented
/// letters, whose upper and title case follow from these.
std::u32string folded(char32_t c) {
  utf8proc_int32_t parts[4];
  int boundary = 0;
  const auto count =
      category(c) == UTF8PROC_CATEGORY_LU
          ? 0
          : utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 4, UTF8PROC_CASEFOLD, &boundary);
  return {parts, parts + std::max<utf8proc_ssize_t>(count, 0)};
}

void append_upper(std::string& result, char32_t c) {
  const std::u32string parts = folded(c);
  if (parts.size() < 2) return append_utf8(result, mapped(c, utf8proc_toupper));
  for (const char32_t part : parts) append_utf8(result, mapped(part, utf8proc_toupper));
}

bool is_cased(char32_t c) {
  const auto code = static_cast<utf8proc_int32_t>(c);
  return utf8proc_isupper(code) != 0 || utf8proc_islower(code) != 0 || category(c) == UTF8PROC_CATEGORY_LU ||
         category(c) == UTF8PROC_CATEGORY_LL || category(c) == UTF8PROC_CATEGORY_LT;
}

/// Unicode's Case_Ignorable: characters inside words that are no letters, such as apostrophes and combining marks.
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  static constexpr char32_t kOthers[] = {'\'',   '.',    ':',    0xB7,   0x387,  0x55F,
                                         0x5F4,  0x2018, 0x2019, 0x2024, 0x2027, 0xFE13,
                                         0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  return std::find(std::begin(kOthers), std::end(kOthers), c) != std::end(kOthers);
}

/// Whether the sigma at byte `at` ends a word.
bool is_final_sigma(std::string_view text, size_t at) {
  std::string_view before = text.substr(0, at);
  while (!before.empty() && is_case_ignorable(decode_code_point(last_character(before))))
    before.remove_suffix(last_character(before).size());
  if (before.empty() || !is_cased(decode_code_point(last_character(before)))) return false;
  for (size_t after = at + 2; after < text.size(); after += utf8_sequence_length(text.substr(after))) {
    const char32_t c = decode_code_point(text.substr(after));
    if (!is_case_ignorable(c)) return !is_cased(c);
  }
  return true;
}

void append_lower(std::string& result, std::string_view text, size_t at, char32_t c) {
  constexpr char32_t kSigma = 0x3A3;
  constexpr char32_t kDottedI = 0x130;
  if (c == kSigma)
    append_utf8(result, is_final_sigma(text, at) ? 0x3C2 : 0x3C3);
  else if (c == kDottedI)
    result += "i\u0307";
  else
    append_utf8(result, mapped(c, utf8proc_tolower));
}

void append_title(std::string& result, char32_t c) {
  const std::u32string parts = folded(c);
  const char32_t simple = mapped(c, utf8proc_totitle);
  const bool has_title = category(c) == UTF8PROC_CATEGORY_LT || category(simple) == UTF8PROC_CATEGORY_LT;
  if (parts.size() < 2 || has_title) return append_utf8(result, simple);
  // The first letter becomes upper case; a following iota becomes the combining iota subscript.
  bool begun = false;
  for (const char32_t part : parts) {
    const char32_t upper = mapped(part, utf8proc_toupper);
    const bool iota = part == 0x3B9 && begun;
    append_utf8(result, begun ? (iota ? 0x345 : part) : upper);
    begun = begun || upper != part;
  }
}

/// Calls visit(byte offset, code point) for each character.
template <typename Visit>
void each_character(std::string_view text, Visit visit) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_sequence_length(text.substr(at));
    visit(at, decode_code_point(text.substr(at)));
    at += length;
  }
}

}  // namespace

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

size_t space_length(std::string_view text) {
  if (text.empty()) return 0;
  if (static_cast<unsigned char>(text[0]) < 0x80)
    return is_space(static_cast<unsigned char>(text[0])) ? 1 : 0;
  return is_space(decode_code_point(text)) ? utf8_sequence_length(text) : 0;
}

std::string_view last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return text.substr(at);
}

std::string_view stripped_left(std::string_view text) {
  while (const size_t length = space_length(text)) text.remove_prefix(length);
  return text;
}

std::string_view stripped_right(std::string_view text) {
  while (!text.empty() && space_length(last_character(text)) != 0)
    text.remove_suffix(last_character(text).size());
  return text;
}

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

size_t offset_of(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;
    if (index == 0) break;
    --index;
  }
  return at;
}

std::string upper(std::string_view text) {
  std::string result;
  each_character(text, [&](size_t, char32_t c) { append_upper(result, c); });
  return result;
}

std::string lower(std::string_view text) {
  std::string result;
  each_character(text, [&](size_t at, char32_t c) { append_lower(result, text, at, c); });
  return result;
}

std::string title(std::string_view text) {
  std::string result;
  bool inside = false;
  each_character(text, [&](size_t at, char32_t c) {
    if (inside)
      append_lower(result, text, at, c);
    else
      append_title(result, c);
    inside = is_cased(c);
  });
  return result;
}

std::string capitalized(std::string_view text) {
  std::string result;
  each_character(text, [&](size_t at, char32_t c) {
    if (at == 0)
      append_title(result, c);
    else
      append_lower(result, text, at, c);
  });
  return result;
}

}  // namespace stepforge::jinja
