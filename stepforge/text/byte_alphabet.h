// SPDX-License-Identifier: Apache-2.0
// The byte alphabet of byte-level BPE (GPT-2's table): each byte is written as one printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stepforge {

/// Printable Latin-1 bytes are written as themselves, the other 68 as U+0100, U+0101, ... in byte order.
std::string to_byte_alphabet(std::string_view bytes);

/// The character that stands for a byte.
char32_t byte_alphabet_code_point(uint8_t byte);

/// The bytes that `piece` stands for; nullopt if it holds a character outside the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view piece);

}  // namespace stepforge
