// SPDX-License-Identifier: Apache-2.0
// White space, code points and case as Python has them. The Unicode data is utf8proc's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stepforge::jinja {

/// str.isspace of one character.
bool is_space(char32_t c);
/// Whether repr shows the character as it is.
bool is_printable(char32_t c);

/// Bytes of the white space character at the beginning of `text`, 0 if there is none.
size_t space_length(std::string_view text);
/// The last code point of a text that is not empty.
std::string_view last_character(std::string_view text);
std::string_view stripped_left(std::string_view text);
std::string_view stripped_right(std::string_view text);

int64_t count_code_points(std::string_view text);
/// The byte offset of code point `index`, at most text.size().
size_t offset_of(std::string_view text, int64_t index);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalized(std::string_view text);

}  // namespace stepforge::jinja
