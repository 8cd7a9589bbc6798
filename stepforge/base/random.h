// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a value is a pure function of (key, counter), so there is no state to save
// and no result depends on the order of draws. Philox 4x32-10 of Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (2011).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace stepforge {

/// Four independent 32-bit words for one (key, counter).
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> state = {
      static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
      static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * state[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * state[2];
    state = {static_cast<uint32_t>(product1 >> 32) ^ state[1] ^ key0, static_cast<uint32_t>(product1),
             static_cast<uint32_t>(product0 >> 32) ^ state[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return state;
}

/// Mixes 64 bits so that each input bit changes about half of the output bits (the finalizer of SplitMix64).
inline uint64_t mix_bits(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

/// A key for one named purpose: the same seed gives unrelated streams for "init:wte" and "dropout".
uint64_t stream_key(uint64_t seed, std::string_view purpose);

/// A number in [0, 1) with 24 random bits.
inline float uniform_float(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1.0p-24F;
}
/// A number in [0, 1) with 53 random bits.
inline double uniform_double(uint32_t high, uint32_t low) {
  return static_cast<double>(((uint64_t{high} << 32) | low) >> 11) * 0x1.0p-53;
}

/// A pseudo-random bijection of [0, size): element `index` of a shuffled order that is never stored.
/// A four-round Feistel network over the next even power of two, applied until the value is in the range.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t size_;
  uint64_t key_;
  int half_bits_;
};

}  // namespace stepforge
