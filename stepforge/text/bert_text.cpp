// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/bert_text.h"

#include "stepforge/base/utf8.h"
#include "stepforge/text/unicode_forms.h"

namespace stepforge {

namespace {

/// `change(code_point, character, result)` appends the result for each character.
template <typename Change>
std::string changed_characters(std::string_view text, const Change& change) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t length = utf8_sequence_length(text);
    change(decode_code_point(text), text.substr(0, length), result);
    text.remove_prefix(length);
  }
  return result;
}

bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_removed_by_nmt(char32_t c) {
  return (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

bool is_space_for_nmt(char32_t c) {
  return c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

}  // namespace

std::string without_controls(std::string_view text) {
  return changed_characters(text, [](char32_t point, std::string_view character, std::string& result) {
    if (point == 0 || point == 0xFFFD || is_control(point)) return;
    result += is_white_space(point) ? std::string_view(" ") : character;
  });
}

std::string with_spaced_ideographs(std::string_view text) {
  return changed_characters(text, [](char32_t point, std::string_view character, std::string& result) {
    const bool spaced = is_ideograph(point);
    if (spaced) result += ' ';
    result += character;
    if (spaced) result += ' ';
  });
}

std::string without_nonspacing_marks(std::string_view text) {
  return changed_characters(text, [](char32_t point, std::string_view character, std::string& result) {
    if (!is_nonspacing_mark(point)) result += character;
  });
}

std::string nmt_text(std::string_view text) {
  return changed_characters(text, [](char32_t point, std::string_view character, std::string& result) {
    if (is_removed_by_nmt(point)) return;
    result += is_space_for_nmt(point) ? std::string_view(" ") : character;
  });
}

}  // namespace stepforge
