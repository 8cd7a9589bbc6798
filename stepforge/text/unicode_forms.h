// SPDX-License-Identifier: Apache-2.0
// Unicode's normalization forms, lower case and character classes, as Hugging Face `tokenizers` computes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// False only if `form` cannot change `text`; a quick look, linear in the text. `text` must be UTF-8.
bool may_change(std::string_view text, NormalForm form);

/// `text` in `form`. Characters newer than the tables of `tokenizers` stay as they are, and nothing moves or
/// composes across them. Time O(n log n) for any text. `text` must be UTF-8.
std::string normal_form(std::string_view text, NormalForm form);

/// Each character in lower case, without regard to its neighbours (no final sigma).
std::string lower_case(std::string_view text);

/// A combining mark (categories Mn, Mc, Me).
bool is_mark(char32_t code_point);

/// Punctuation (categories P*), and every visible ASCII character that is not a letter or digit.
bool is_punctuation(char32_t code_point);

/// A character of a word as regular expressions count them (\w): letters, marks, digits, connectors, joiners.
bool is_word_character(char32_t code_point);

/// White_Space of Unicode.
bool is_white_space(char32_t code_point);

/// A mark of the category Mn.
bool is_nonspacing_mark(char32_t code_point);

/// Control, format and private-use characters except tab and line breaks.
bool is_control(char32_t code_point);

/// The extended grapheme clusters of a text, which must be UTF-8 and outlive this.
class GraphemeClusters {
 public:
  explicit GraphemeClusters(std::string_view text) : rest_(text) {}
  std::optional<std::string_view> next();

 private:
  std::string_view rest_;
};

}  // namespace stepforge
