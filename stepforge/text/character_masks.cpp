// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/character_masks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "stepforge/text/character_classes.h"

namespace stepforge {

namespace {

enum Flag { kLetter, kNumber, kSpace, kLineBreak, kBlank, kApostrophe, kWide };

constexpr uint8_t flag_if(bool condition, Flag flag) {
  return condition ? static_cast<uint8_t>(1 << flag) : uint8_t{0};
}

/// Without branches or tables, so that the compiler does many bytes at once.
constexpr uint8_t flags_of(uint8_t byte) {
  const auto is_within = [byte](uint8_t first, uint8_t count) {
    return static_cast<uint8_t>(byte - first) < count;
  };
  const auto lower = static_cast<uint8_t>(byte | 0x20);
  return flag_if(static_cast<uint8_t>(lower - 'a') < 26, kLetter) | flag_if(is_within('0', 10), kNumber) |
         flag_if(is_within('\t', 5), kSpace) | flag_if(byte == ' ', kSpace) |
         flag_if(byte == '\n', kLineBreak) | flag_if(byte == '\r', kLineBreak) | flag_if(byte == ' ', kBlank) |
         flag_if(byte == '\'', kApostrophe) | flag_if(byte >= 0x80, kWide);
}

/// The flags of eight bytes, the first in the lowest byte.
uint64_t load_flags(const uint8_t* flags) {
  uint64_t word = 0;
  std::memcpy(&word, flags, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

/// One flag of eight bytes as eight bits: the product moves the bit of byte i to bit 56 + i.
constexpr uint64_t gather(uint64_t flags, Flag flag) {
  return ((flags >> flag & 0x0101010101010101) * 0x0102040810204080) >> 56;
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
  std::array<uint64_t, ByteBits::kWords> wide;
  for (size_t w = 0; w < words; ++w) {
    wide[w] = classify_ascii(text.substr(w * 64), w);
    if (wide[w] != 0) is_ascii = false;
  }
  for (size_t w = 0; w < words && !is_ascii; ++w) classify_wide(text, w, wide[w]);
  for (size_t w = 0; w < words; ++w) other[w] = ~(letter[w] | number[w] | space[w]);
  if (size % 64 != 0) other[words - 1] &= (uint64_t{1} << size % 64) - 1;
}

/// Returns which bytes are not ASCII.
uint64_t CharacterMasks::classify_ascii(std::string_view bytes, size_t w) {
  std::array<uint8_t, 64> block{};
  std::memcpy(block.data(), bytes.data(), std::min(bytes.size(), block.size()));
  for (uint8_t& byte : block) byte = flags_of(byte);
  uint64_t wide = 0;
  for (size_t i = 0; i < block.size(); i += 8) {
    const uint64_t flags = load_flags(block.data() + i);
    letter[w] |= gather(flags, kLetter) << i;
    number[w] |= gather(flags, kNumber) << i;
    space[w] |= gather(flags, kSpace) << i;
    line_break[w] |= gather(flags, kLineBreak) << i;
    blank[w] |= gather(flags, kBlank) << i;
    apostrophe[w] |= gather(flags, kApostrophe) << i;
    wide |= gather(flags, kWide) << i;
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
