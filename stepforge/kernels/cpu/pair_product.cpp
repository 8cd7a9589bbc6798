// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/pair_product.h"

#include "stepforge/kernels/cpu/fetch_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stepforge::cpu {

#if defined(__x86_64__)
namespace {

#define STEPFORGE_BF16 __attribute__((target("arch=x86-64-v4,avx512bf16")))

constexpr int64_t kPairLanes = 16;
constexpr int kPairRows = 6;
constexpr int kPairVectors = 4;

/// rows x vectors of c, in registers from the first to the last k. Constants, once inlined.
STEPFORGE_BF16 STEPFORGE_INLINE void pair_tile(const BlockProduct& p, int64_t row, int64_t column, int rows,
                                               int vectors) {
  __m512 sum[kPairRows][kPairVectors];
  float* c = p.c + row * p.c_row + column;
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = p.accumulate ? _mm512_loadu_ps(c + r * p.c_row + v * kPairLanes) : _mm512_setzero_ps();
  }
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + column;
  const int64_t a_row = p.a_row;
  const int64_t b_row = p.b_row;
  FetchAhead ahead = *p.ahead;
  for (int64_t k = 0; k < p.depth; ++k, b += b_row) {
    fetch_line(ahead, k);
    __m512 right[kPairVectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) right[v] = _mm512_loadu_ps(b + v * kPairLanes);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const __m512 left = _mm512_set1_ps(a[r * a_row + k]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)left, (__m512bh)right[v]);
    }
  }
  *p.ahead = ahead;
  if (p.rounded != nullptr) {
    c10::BFloat16* to = p.rounded + row * p.rounded_row + column;
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + r * p.rounded_row + v * kPairLanes),
                            (__m256i)_mm512_cvtneps_pbh(sum[r][v]));
      }
    }
    return;
  }
  if (p.non_temporal) {
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) _mm512_stream_ps(c + r * p.c_row + v * kPairLanes, sum[r][v]);
    }
    return;
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) _mm512_storeu_ps(c + r * p.c_row + v * kPairLanes, sum[r][v]);
  }
}

STEPFORGE_BF16 STEPFORGE_INLINE void pair_column(const BlockProduct& p, int64_t column, int vectors) {
  int64_t row = 0;
  for (; row + kPairRows <= p.rows; row += kPairRows) pair_tile(p, row, column, kPairRows, vectors);
  switch (p.rows - row) {
    case 5:
      return pair_tile(p, row, column, 5, vectors);
    case 4:
      return pair_tile(p, row, column, 4, vectors);
    case 3:
      return pair_tile(p, row, column, 3, vectors);
    case 2:
      return pair_tile(p, row, column, 2, vectors);
    case 1:
      return pair_tile(p, row, column, 1, vectors);
    default:
      return;
  }
}

STEPFORGE_BF16 void multiply_pairs(const BlockProduct& p) {
  int64_t column = 0;
  for (; column + 4 * kPairLanes <= p.columns; column += 4 * kPairLanes) pair_column(p, column, 4);
  for (; column < p.columns; column += kPairLanes) pair_column(p, column, 1);
  if (p.non_temporal) _mm_sfence();
}

#undef STEPFORGE_BF16

}  // namespace
#endif

void (*pair_product())(const BlockProduct&) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4") != 0 && __builtin_cpu_supports("avx512bf16") != 0 &&
      __builtin_cpu_supports("amx-bf16") == 0)
    return multiply_pairs;
#endif
  return nullptr;
}

}  // namespace stepforge::cpu
