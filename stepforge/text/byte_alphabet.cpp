// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

constexpr bool is_written_as_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet[static_cast<size_t>(byte)] = is_written_as_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return alphabet;
}

/// From code point to byte; -1 outside the alphabet, which ends at U+0143.
constexpr std::array<int16_t, 0x144> make_inverse_alphabet(const std::array<char32_t, 256>& alphabet) {
  std::array<int16_t, 0x144> inverse{};
  for (int16_t& byte : inverse) byte = -1;
  for (size_t byte = 0; byte < alphabet.size(); ++byte) inverse[alphabet[byte]] = static_cast<int16_t>(byte);
  return inverse;
}

constexpr std::array<char32_t, 256> kByteAlphabet = make_alphabet();
constexpr std::array<int16_t, 0x144> kInverseAlphabet = make_inverse_alphabet(kByteAlphabet);

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string piece;
  piece.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes) append_utf8(piece, kByteAlphabet[static_cast<uint8_t>(byte)]);
  return piece;
}

char32_t byte_alphabet_code_point(uint8_t byte) {
  return kByteAlphabet[byte];
}

std::optional<std::string> from_byte_alphabet(std::string_view piece) {
  std::string bytes;
  while (!piece.empty()) {
    const size_t length = utf8_sequence_length(piece);
    if (length == 0) return std::nullopt;
    const char32_t code_point = decode_code_point(piece);
    if (code_point >= kInverseAlphabet.size() || kInverseAlphabet[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kInverseAlphabet[code_point]));
    piece.remove_prefix(length);
  }
  return bytes;
}

}  // namespace stepforge
