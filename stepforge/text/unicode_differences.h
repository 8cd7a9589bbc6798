// SPDX-License-Identifier: Apache-2.0
// Where the Unicode tables of Hugging Face `tokenizers` 0.23 differ from those of utf8proc 2.8 (Unicode 15).
#pragma once

namespace stepforge {

/// A character that its normalization forms (Unicode 9) do not know: they leave it as it is.
bool is_newer_than_forms(char32_t code_point);

/// utf8proc's answer to "is this a combining mark" is the wrong one.
bool is_mark_elsewhere(char32_t code_point);

/// utf8proc's answer to "is this punctuation" is the wrong one.
bool is_punctuation_elsewhere(char32_t code_point);

/// The same for the category Mn, of characters that are their own canonical decomposition.
bool is_nonspacing_mark_elsewhere(char32_t code_point);

/// The same for control, format and private-use characters.
bool is_control_elsewhere(char32_t code_point);

/// utf8proc's answer to "does it belong to the letter before it" is the wrong one.
bool is_grapheme_extender_elsewhere(char32_t code_point);

/// is_word_character()'s categories give the wrong answer.
bool is_word_elsewhere(char32_t code_point);

/// The lower case of a letter newer than utf8proc; 0 for others.
char32_t newer_lower_case(char32_t code_point);

}  // namespace stepforge
