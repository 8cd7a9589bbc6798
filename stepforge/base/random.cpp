// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/random.h"

#include <bit>
#include <span>

#include <xxhash.h>

namespace stepforge {

uint64_t stream_key(uint64_t seed, std::string_view purpose) {
  return mix_bits(XXH3_64bits_withSeed(purpose.data(), purpose.size(), seed) ^ mix_bits(seed));
}

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
  const int bits = size <= 2 ? 2 : static_cast<int>(std::bit_width(size - 1));
  half_bits_ = (bits + 1) / 2;
}

uint64_t Permutation::operator()(uint64_t index) const {
  if (size_ <= 1) return index;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = mix_bits(key_ ^ mix_bits(right * 4 + round));
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= size_);
  return index;
}

}  // namespace stepforge
