// UTF-8 validity, and the byte alphabet of byte-level BPE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

/// Length (1 to 4) of the well-formed UTF-8 sequence at the start of `text`, or 0 if there is none. Follows
/// table 3-7 of the Unicode standard: overlong forms, surrogates and code points above U+10FFFF are
/// ill-formed.
size_t utf8_sequence_length(std::string_view text);

/// True if `text` is a proper prefix of some well-formed sequence, so that further bytes may complete it.
bool is_incomplete_utf8(std::string_view text);

/// Offset of the first byte that is not part of well-formed UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

/// Throws FormatError naming `source`, the offset and the byte if `text` is not well-formed UTF-8.
void require_utf8(std::string_view text, std::string_view source);

/// The code point of the well-formed sequence at the start of `text`.
char32_t decode_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

/// Byte-level BPE writes each byte as one printable character (GPT-2's table): printable Latin-1 bytes stand
/// for themselves, the other 68 for U+0100, U+0101, ... in byte order.
std::string to_byte_alphabet(std::string_view bytes);

/// The bytes that `piece` stands for; nullopt if it holds a character outside the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view piece);

}  // namespace stepforge
