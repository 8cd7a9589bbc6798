// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/unicode_forms.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include <utf8proc.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/unicode_differences.h"

namespace stepforge {

namespace {

/// Characters that no form changes and that no neighbour can change by composing with them: ASCII, then (for
/// the canonical composition) Latin letters before the combining marks, Cyrillic letters and ideographs.
bool is_inert(char32_t code_point, NormalForm form) {
  if (code_point < 0x80) return true;
  if (code_point >= 0x4E00 && code_point <= 0x9FEF) return true;
  if (form != NormalForm::nfc) return false;
  return code_point < 0x300 || (code_point >= 0x400 && code_point <= 0x482);
}

utf8proc_option_t options_of(NormalForm form) {
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

/// One part of a text, without the characters that must stay as they are.
class Part {
 public:
  explicit Part(NormalForm form) : form_(form) {}

  void add(char32_t code_point) {
    std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18 characters
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts.data(),
                                               std::ssize(parts), options_of(form_), &boundary);
    if (count < 0 || count > std::ssize(parts)) {
      throw Error(format("U+{:04X} cannot be decomposed: {}", static_cast<uint32_t>(code_point),
                         utf8proc_errmsg(count)));
    }
    points_.insert(points_.end(), parts.begin(), parts.begin() + count);
  }

  void move_to(std::string& text) {
    order_marks();
    auto count = static_cast<utf8proc_ssize_t>(points_.size());
    if (form_ == NormalForm::nfc || form_ == NormalForm::nfkc) {
      count = utf8proc_normalize_utf32(points_.data(), count,
                                       static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i)
      append_utf8(text, static_cast<char32_t>(points_[static_cast<size_t>(i)]));
    points_.clear();
  }

 private:
  static int combining_class(utf8proc_int32_t point) { return utf8proc_get_property(point)->combining_class; }

  /// The canonical order. utf8proc's own takes quadratic time for a long run of marks.
  void order_marks() {
    const auto is_starter = [](utf8proc_int32_t point) { return combining_class(point) == 0; };
    for (auto begin = points_.begin(); begin != points_.end();) {
      begin = std::find_if_not(begin, points_.end(), is_starter);
      const auto end = std::find_if(begin, points_.end(), is_starter);
      std::stable_sort(begin, end,
                       [](auto left, auto right) { return combining_class(left) < combining_class(right); });
      begin = end;
    }
  }

  NormalForm form_;
  std::vector<utf8proc_int32_t> points_;
};

/// Calls `use` with each code point of `text`.
template <typename Use>
void for_each_code_point(std::string_view text, const Use& use) {
  while (!text.empty()) {
    use(decode_code_point(text));
    text.remove_prefix(utf8_sequence_length(text));
  }
}

}  // namespace

bool may_change(std::string_view text, NormalForm form) {
  while (!text.empty()) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) break;
    if (!is_inert(decode_code_point(text), form)) return true;
    text.remove_prefix(utf8_sequence_length(text));
  }
  return false;
}

std::string normal_form(std::string_view text, NormalForm form) {
  std::string result;
  result.reserve(text.size());
  Part part(form);
  for_each_code_point(text, [&](char32_t point) {
    if (!is_newer_than_forms(point)) return part.add(point);
    part.move_to(result);
    append_utf8(result, point);
  });
  part.move_to(result);
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for_each_code_point(text, [&](char32_t point) {
    if (point == 0x130) {
      result += "i\u0307";  // the only character whose lower case has two
    } else if (const char32_t lower = newer_lower_case(point); lower != 0) {
      append_utf8(result, lower);
    } else {
      append_utf8(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point))));
    }
  });
  return result;
}

bool is_mark(char32_t code_point) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  const bool mark = category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
  return mark != is_mark_elsewhere(code_point);
}

bool is_punctuation(char32_t code_point) {
  if (code_point < 0x80) return std::ispunct(static_cast<int>(code_point)) != 0;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  const bool punctuation = category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
  return punctuation != is_punctuation_elsewhere(code_point);
}

bool is_word_character(char32_t code_point) {
  if (code_point < 0x80) return std::isalnum(static_cast<int>(code_point)) != 0 || code_point == '_';
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  const bool word = (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
                    category == UTF8PROC_CATEGORY_PC;
  return word != is_word_elsewhere(code_point);
}

bool is_white_space(char32_t code_point) {
  return (code_point >= 0x9 && code_point <= 0xD) || code_point == 0x20 || code_point == 0x85 ||
         code_point == 0xA0 || code_point == 0x1680 || (code_point >= 0x2000 && code_point <= 0x200A) ||
         code_point == 0x2028 || code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
         code_point == 0x3000;
}

bool is_nonspacing_mark(char32_t code_point) {
  const bool mark = utf8proc_category(static_cast<utf8proc_int32_t>(code_point)) == UTF8PROC_CATEGORY_MN;
  return mark != is_nonspacing_mark_elsewhere(code_point);
}

bool is_control(char32_t code_point) {
  if (code_point == '\t' || code_point == '\n' || code_point == '\r') return false;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  const bool control = category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                       category == UTF8PROC_CATEGORY_CO;
  return control != is_control_elsewhere(code_point);
}

namespace {

/// Not assigned, but a control in Unicode's GraphemeBreakProperty.txt, beside which a cluster ends. utf8proc has no
/// property for it.
bool is_reserved_control(char32_t point) {
  if (point == 0x2065 || (point >= 0xFFF0 && point <= 0xFFF8)) return true;
  return point >= 0xE0000 && point <= 0xE0FFF &&
         utf8proc_category(static_cast<utf8proc_int32_t>(point)) == UTF8PROC_CATEGORY_CN;
}

bool breaks_between(char32_t before, char32_t after, utf8proc_int32_t& state) {
  if (is_reserved_control(before) || is_reserved_control(after)) return true;
  const bool breaks = utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before),
                                                       static_cast<utf8proc_int32_t>(after), &state);
  if (!is_grapheme_extender_elsewhere(after)) return breaks;
  const auto kind = utf8proc_get_property(static_cast<utf8proc_int32_t>(before))->boundclass;
  const bool stands_alone =
      kind == UTF8PROC_BOUNDCLASS_CONTROL || kind == UTF8PROC_BOUNDCLASS_CR || kind == UTF8PROC_BOUNDCLASS_LF;
  return stands_alone ? breaks : !breaks;
}

}  // namespace

std::optional<std::string_view> GraphemeClusters::next() {
  if (rest_.empty()) return std::nullopt;
  utf8proc_int32_t state = 0;
  char32_t last = decode_code_point(rest_);
  size_t length = utf8_sequence_length(rest_);
  while (length < rest_.size()) {
    const char32_t point = decode_code_point(rest_.substr(length));
    if (breaks_between(last, point, state)) break;
    last = point;
    length += utf8_sequence_length(rest_.substr(length));
  }
  const std::string_view cluster = rest_.substr(0, length);
  rest_.remove_prefix(length);
  return cluster;
}

}  // namespace stepforge
