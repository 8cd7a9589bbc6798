// SPDX-License-Identifier: Apache-2.0
// The classes of the characters of a block of text as bits, so that a machine word says them of 64 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stepforge {

/// One bit for each byte of a block. Bits outside the block are 0.
class ByteBits {
 public:
  static constexpr size_t kWords = 32;
  static constexpr size_t kBytes = kWords * 64;

  /// Word `w` holds bytes 64 * w and following, from its lowest bit on.
  uint64_t operator[](size_t w) const { return words_[w + 1]; }
  uint64_t& operator[](size_t w) { return words_[w + 1]; }
  /// For each byte of a word the bit of the byte before it.
  uint64_t before(size_t w) const { return words_[w + 1] << 1 | words_[w] >> 63; }
  /// For each byte of a word the bit of the byte that follows `distance` later, which is 1 to 63.
  uint64_t after(size_t w, int distance = 1) const {
    return words_[w + 1] >> distance | words_[w + 2] << (64 - distance);
  }
  bool at(size_t byte) const { return (words_[byte / 64 + 1] >> (byte % 64) & 1) != 0; }
  void set(size_t byte) { words_[byte / 64 + 1] |= uint64_t{1} << (byte % 64); }
  void clear(size_t byte) { words_[byte / 64 + 1] &= ~(uint64_t{1} << (byte % 64)); }

 private:
  std::array<uint64_t, kWords + 2> words_{};  ///< the first and the last are outside
};

/// All bytes of a character carry its class.
struct CharacterMasks {
  /// Reads the characters at the start of valid UTF-8 that fit into a block; `text` is not empty.
  explicit CharacterMasks(std::string_view text);

  /// For each first byte of a character of at most three bytes, the bit of the next character.
  uint64_t next(const ByteBits& bits, size_t w) const;

  size_t size;   ///< in bytes
  size_t words;  ///< that hold them
  bool is_ascii = true;
  ByteBits letter, number, other;
  ByteBits space;  ///< with line breaks
  ByteBits line_break;
  ByteBits blank;  ///< U+0020
  ByteBits apostrophe;
  ByteBits continuation;  ///< bytes of a character after its first

 private:
  uint64_t classify_ascii(const char* block, size_t w);
  void classify_wide(std::string_view text, size_t w, uint64_t wide);
};

}  // namespace stepforge
