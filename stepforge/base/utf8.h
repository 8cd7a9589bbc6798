// SPDX-License-Identifier: Apache-2.0
// UTF-8: validation, decoding and encoding. Well-formed as in table 3-7 of the Unicode standard: no overlong
// forms, no surrogates, no code points above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stepforge {

/// U+FFFD, which replaces bytes that are not well-formed.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Length (1 to 4) of the well-formed sequence at the start of `text`, or 0 if there is none.
size_t utf8_sequence_length(std::string_view text);

/// True if `text` is a proper prefix of some well-formed sequence, so that further bytes may complete it.
bool is_incomplete_utf8(std::string_view text);

/// How many bytes at the start of `text` are ASCII.
size_t ascii_prefix(std::string_view text);

/// Offset of the first byte that is not part of well-formed UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

/// Throws FormatError naming `source`, the offset and the byte if `text` is not well-formed UTF-8. `offset`
/// is that of text[0] in the source.
void require_utf8(std::string_view text, std::string_view source, size_t offset = 0);

/// The code point of the well-formed sequence at the start of `text`.
char32_t decode_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

/// `text` with control characters, other than tabs and line feeds, and bytes that are not UTF-8 written as \x1B, so that
/// text from a file cannot steer a terminal. Everything written to a terminal or log passes through it.
std::string printable(std::string_view text);

/// The same with tabs and line feeds too: a name or text from a file inside a message, where it could otherwise forge a
/// line of its own.
std::string printable_line(std::string_view text);

/// printable_line() in double quotes, cut after 100 bytes.
std::string quoted_for_message(std::string_view text);

}  // namespace stepforge
