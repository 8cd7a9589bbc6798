// SPDX-License-Identifier: Apache-2.0
// Standard normal numbers from counters, many at once.
#pragma once

#include <cstdint>

namespace stepforge::cpu {

inline constexpr int64_t kNormalGroups = 16;
/// Numbers of one call: each group of four words gives four.
inline constexpr int64_t kNormalNumbers = 4 * kNormalGroups;

/// values[4i .. 4i+3] are two Box-Muller pairs of the words of philox(key, groups[i], attempt): radius sqrt(-2 log u) with
/// u = (word + 1/2) / 2^32, never 0, and angle 2 pi (word >> 8) / 2^24; a pair is radius times cosine and sine. Errors are below
/// 1e-6 of the radius. The same bits on every processor: this file is compiled without fused multiply-adds.
void normal_numbers(uint64_t key, const uint64_t* groups, uint64_t attempt, float* values);

}  // namespace stepforge::cpu
