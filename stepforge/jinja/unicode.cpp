// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/unicode.h"

#include <algorithm>

#include <utf8proc.h>

#include "stepforge/base/utf8.h"
#include "stepforge/jinja/special_casing.h"

namespace stepforge::jinja {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

const std::string_view* special(const std::vector<SpecialCase>& cases, char32_t c) {
  const auto found = std::lower_bound(
      cases.begin(), cases.end(), c, [](const SpecialCase& entry, char32_t key) { return entry.from < key; });
  return found != cases.end() && found->from == c ? &found->to : nullptr;
}

using SimpleCase = utf8proc_int32_t (*)(utf8proc_int32_t);

void append_mapped(std::string& result, char32_t c, const std::vector<SpecialCase>& cases,
                   SimpleCase simple) {
  if (const std::string_view* mapped = special(cases, c)) {
    result += *mapped;
  } else {
    append_utf8(result, static_cast<char32_t>(simple(static_cast<utf8proc_int32_t>(c))));
  }
}

bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || is_title(c);
}

/// Characters that words contain without being letters, such as apostrophes and combining marks.
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
  size_t before = at;
  bool cased_before = false;
  while (before > 0) {
    do --before;
    while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80);
    const char32_t c = decode_code_point(text.substr(before));
    if (is_case_ignorable(c)) continue;
    cased_before = is_cased(c);
    break;
  }
  if (!cased_before) return false;
  for (size_t after = at + 2; after < text.size(); after += utf8_sequence_length(text.substr(after))) {
    const char32_t c = decode_code_point(text.substr(after));
    if (!is_case_ignorable(c)) return !is_cased(c);
  }
  return true;
}

constexpr char32_t kSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;

void append_lower(std::string& result, std::string_view text, size_t at, char32_t c) {
  if (c == kSigma) {
    append_utf8(result, is_final_sigma(text, at) ? kFinalSigma : 0x3C3);
  } else {
    append_mapped(result, c, special_lower(), utf8proc_tolower);
  }
}

void append_title(std::string& result, char32_t c) {
  append_mapped(result, c, special_title(), utf8proc_totitle);
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

bool is_alpha(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t c) {
  if (is_decimal(c)) return true;
  // Superscripts, subscripts and circled digits: Numeric_Type=Digit of the Unicode character database.
  static constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
      {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
      {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
      {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return is_digit(c) || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}

bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
}

bool is_title(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LT;
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

bool is_word(char32_t c) {
  return c == '_' || is_alpha(c) || is_numeric(c);
}

size_t space_length(std::string_view text) {
  if (text.empty()) return 0;
  if (static_cast<unsigned char>(text[0]) < 0x80)
    return is_space(static_cast<unsigned char>(text[0])) ? 1 : 0;
  return is_space(decode_code_point(text)) ? utf8_sequence_length(text) : 0;
}

std::string_view stripped_left(std::string_view text) {
  while (const size_t length = space_length(text)) text.remove_prefix(length);
  return text;
}

std::string_view stripped_right(std::string_view text) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (space_length(text.substr(last)) == 0) break;
    text = text.substr(0, last);
  }
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
  each_character(text,
                 [&](size_t, char32_t c) { append_mapped(result, c, special_upper(), utf8proc_toupper); });
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

std::string swapped_case(std::string_view text) {
  std::string result;
  each_character(text, [&](size_t at, char32_t c) {
    if (is_upper(c))
      append_lower(result, text, at, c);
    else if (is_lower(c))
      append_mapped(result, c, special_upper(), utf8proc_toupper);
    else
      append_utf8(result, c);
  });
  return result;
}

}  // namespace stepforge::jinja
