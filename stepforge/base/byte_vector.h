// SPDX-License-Identifier: Apache-2.0
// Sixteen bytes at a time: vectors of the compiler, which every processor of 64 bits has registers for.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace stepforge {

/// Comparing two gives the bytes 255 where it holds and 0 elsewhere.
using ByteVector = uint8_t __attribute__((vector_size(16)));
inline constexpr size_t kVectorBytes = sizeof(ByteVector);

inline ByteVector load_bytes(const void* bytes) {
  ByteVector vector;
  std::memcpy(&vector, bytes, sizeof(vector));
  return vector;
}

/// The highest bit of each byte, that of the first byte lowest.
inline uint64_t high_bits(ByteVector vector) {
#if defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_epi8(std::bit_cast<__m128i>(vector)));
#else
  uint64_t bits = 0;
  for (size_t i = 0; i < kVectorBytes; ++i) bits |= static_cast<uint64_t>(vector[i] >> 7) << i;
  return bits;
#endif
}

}  // namespace stepforge
