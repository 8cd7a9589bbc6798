// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU kernels: one source for every x86-64 machine, element types, a vectorizable exponential.
//
// A kernel's inner loop is a STEPFORGE_SIMD_CLONES function: the compiler builds it for AVX-512, AVX2 and
// plain x86-64, and the loader picks. Helpers it calls must be inlined into each build (STEPFORGE_INLINE);
// lambdas and parallel regions do not inherit the instruction set, so parallel loops are outside.
#pragma once

#include <bit>
#include <cstdint>

#include <c10/util/BFloat16.h>

#include "stepforge/modelspec/kernel_tiles.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define STEPFORGE_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define STEPFORGE_SIMD_CLONES
#endif
#define STEPFORGE_INLINE inline __attribute__((always_inline))

namespace stepforge::cpu {

using c10::BFloat16;

STEPFORGE_INLINE float load(const float* p) {
  return *p;
}
STEPFORGE_INLINE float load(const BFloat16* p) {
  return std::bit_cast<float>(static_cast<uint32_t>(p->x) << 16);
}

STEPFORGE_INLINE void store(float* p, float value) {
  *p = value;
}
/// Rounds to nearest, ties to even; NaN stays NaN.
STEPFORGE_INLINE void store(BFloat16* p, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40U;
  p->x = static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
}

/// 2^x with a relative error below 2e-7; 0 below -126, clamped above 126. NaN stays NaN.
/// x = n + f with |f| <= 1/2: adding 1.5 * 2^23 rounds x to n and leaves n in the low bits of the sum. The
/// polynomial interpolates 2^f at the Chebyshev nodes (relative error 2.6e-9).
STEPFORGE_INLINE float exp2_approx(float x) {
  const float clamped = x > 126.0F ? 126.0F : x;
  constexpr float kRound = 12582912.0F;
  const float shifted = clamped + kRound;
  const float f = clamped - (shifted - kRound);
  float y = 1.546144470e-4F;
  y = y * f + 1.340042818e-3F;
  y = y * f + 9.618056679e-3F;
  y = y * f + 5.550327227e-2F;
  y = y * f + 2.402265092e-1F;
  y = y * f + 6.931472067e-1F;
  y = y * f + 1.0F;
  const float result =
      std::bit_cast<float>(std::bit_cast<uint32_t>(y) + (std::bit_cast<uint32_t>(shifted) << 23));
  return x < -126.0F ? 0.0F : result;
}

/// e^x with a relative error below 3e-7; 0 below -87, clamped above 87. NaN stays NaN. Like exp2_approx, with
/// ln(2) in two parts (n times the first is exact) so that large x keep their precision.
STEPFORGE_INLINE float exp_approx(float x) {
  const float clamped = x > 87.0F ? 87.0F : x;
  constexpr float kRound = 12582912.0F;
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float f = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  float y = 1.394110844e-3F;
  y = y * f + 8.375126398e-3F;
  y = y * f + 4.166635290e-2F;
  y = y * f + 1.666641551e-1F;
  y = y * f + 5.000000047e-1F;
  y = y * f + 1.0F;
  y = y * f + 1.0F;
  const float result =
      std::bit_cast<float>(std::bit_cast<uint32_t>(y) + (std::bit_cast<uint32_t>(shifted) << 23));
  return x < -87.0F ? 0.0F : result;
}

/// tanh(x) with a relative error below 1e-6, by e^(2x) - 1 without cancellation: like exp_approx, but the polynomial
/// is that of e^f - 1, and 2^n - 1 is exact. NaN stays NaN.
STEPFORGE_INLINE float tanh_approx(float x) {
  const float above = x < -10.0F ? -10.0F : x;
  const float doubled = 2.0F * (above > 10.0F ? 10.0F : above);
  constexpr float kRound = 12582912.0F;
  const float shifted = doubled * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float f = (doubled - n * 0.693359375F) - n * -2.12194440e-4F;
  float y = 1.394110844e-3F;
  y = y * f + 8.375126398e-3F;
  y = y * f + 4.166635290e-2F;
  y = y * f + 1.666641551e-1F;
  y = y * f + 5.000000047e-1F;
  y = y * f + 1.0F;
  y = y * f;
  const float power = std::bit_cast<float>(0x3F800000U + (std::bit_cast<uint32_t>(shifted) << 23));
  const float grown = y * power + (power - 1.0F);
  return grown / (grown + 2.0F);
}

/// Rows of one partial sum when `rows` rows are reduced over: a function of the number of rows only, so that
/// the sum's order does not depend on threads.
constexpr int64_t rows_per_partial(int64_t rows) {
  constexpr int64_t kMinRows = 16;
  const int64_t even = (rows + kPartials - 1) / kPartials;
  return even > kMinRows ? even : kMinRows;
}

/// The last step of sums over tokens:
/// target[c] = sum of partials[r * stride + c] over r, in the order of r.
void reduce_rows(const float* partials, int64_t rows, int64_t width, int64_t stride, float* target);

/// Parallel loops give a thread at least about this many elements.
constexpr int64_t kElementsPerTask = 16384;
constexpr int64_t rows_per_task(int64_t row_elements) {
  return row_elements >= kElementsPerTask ? 1 : kElementsPerTask / (row_elements > 0 ? row_elements : 1);
}

}  // namespace stepforge::cpu
