// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/character_masks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "stepforge/base/byte_vector.h"
#include "stepforge/text/character_classes.h"

namespace stepforge {

namespace {

/// The bytes from `first` on, `count` of them.
ByteVector is_within(ByteVector bytes, uint8_t first, uint8_t count) {
  return ByteVector(bytes - first < count);
}

/// Sets `length` bits from `byte` on.
void set_range(ByteBits& bits, size_t byte, uint32_t length) {
  const uint64_t ones = (uint64_t{1} << length) - 1;
  const size_t shift = byte % 64;
  bits[byte / 64] |= ones << shift;
  if (shift + length > 64) bits[byte / 64 + 1] |= ones >> (64 - shift);
}

/// How many bytes of whole characters are in the first block.
size_t block_size(std::string_view text) {
  if (text.size() <= ByteBits::kBytes) return text.size();
  size_t size = ByteBits::kBytes;
  while ((static_cast<uint8_t>(text[size]) & 0xC0) == 0x80) --size;
  return size;
}

}  // namespace

CharacterMasks::CharacterMasks(std::string_view text) : size(block_size(text)), words((size + 63) / 64) {
  text = text.substr(0, size);
  std::array<uint64_t, ByteBits::kWords> wide = {};
  for (size_t w = 0; w < size / 64; ++w) wide[w] = classify_ascii(text.data() + w * 64, w);
  if (const size_t left = size % 64; left != 0) {
    std::array<char, 64> block{};
    std::memcpy(block.data(), text.data() + size - left, left);
    wide[words - 1] = classify_ascii(block.data(), words - 1);
  }
  is_ascii = std::all_of(wide.begin(), wide.begin() + words, [](uint64_t bits) { return bits == 0; });
  for (size_t w = 0; w < words && !is_ascii; ++w) classify_wide(text, w, wide[w]);
  for (size_t w = 0; w < words; ++w) other[w] = ~(letter[w] | number[w] | space[w]);
  if (size % 64 != 0) other[words - 1] &= (uint64_t{1} << size % 64) - 1;
}

/// Returns which bytes are not ASCII.
uint64_t CharacterMasks::classify_ascii(const char* block, size_t w) {
  uint64_t wide = 0;
  for (size_t i = 0; i < 64; i += kVectorBytes) {
    const ByteVector bytes = load_bytes(block + i);
    const auto line_breaks = ByteVector((bytes == '\n') | (bytes == '\r'));
    const auto blanks = ByteVector(bytes == ' ');
    letter[w] |= high_bits(is_within(bytes | 0x20, 'a', 26)) << i;
    number[w] |= high_bits(is_within(bytes, '0', 10)) << i;
    space[w] |= high_bits(is_within(bytes, '\t', 5) | blanks) << i;
    line_break[w] |= high_bits(line_breaks) << i;
    blank[w] |= high_bits(blanks) << i;
    apostrophe[w] |= high_bits(ByteVector(bytes == '\'')) << i;
    wide |= high_bits(bytes) << i;
  }
  return wide;
}

/// The characters that begin at bits of `wide`.
void CharacterMasks::classify_wide(std::string_view text, size_t w, uint64_t wide) {
  for (uint64_t left = wide & ~continuation[w]; left != 0;) {
    const size_t at = w * 64 + static_cast<size_t>(std::countr_zero(left));
    const ClassifiedCharacter character = character_at(text, at);
    set_range(continuation, at + 1, character.length - 1);
    if (character.kind == CharacterClass::letter) set_range(letter, at, character.length);
    if (character.kind == CharacterClass::number) set_range(number, at, character.length);
    if (character.kind == CharacterClass::space) set_range(space, at, character.length);
    left &= left - 1;
    left &= ~continuation[w];
  }
}

uint64_t CharacterMasks::next(const ByteBits& bits, size_t w) const {
  if (is_ascii) return bits.after(w);
  const uint64_t second = continuation.after(w);
  const uint64_t third = second & continuation.after(w, 2);
  return (bits.after(w) & ~second) | (bits.after(w, 2) & second & ~third) | (bits.after(w, 3) & third);
}

}  // namespace stepforge
