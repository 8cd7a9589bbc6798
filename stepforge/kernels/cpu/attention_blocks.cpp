// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/attention_blocks.h"

namespace stepforge::cpu {
namespace {

template <typename T>
STEPFORGE_INLINE void widen_rows_body(const T* from, int64_t from_row, int64_t rows, int64_t columns,
                                      float factor, float* to, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* source = from + r * from_row;
    float* target = to + r * padded;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) target[c] = load(source + c) * factor;
    for (int64_t c = columns; c < padded; ++c) target[c] = 0.0F;
  }
}

/// Sixteen rows at a time: reads are along rows, writes fill a cache line.
template <typename T>
STEPFORGE_INLINE void widen_transposed_body(const T* from, int64_t from_row, int64_t rows, int64_t columns,
                                            float* to, int64_t to_row) {
  constexpr int64_t kUnit = kColumnUnit;
  int64_t r = 0;
  for (; r + kUnit <= rows; r += kUnit) {
    const T* source = from + r * from_row;
    for (int64_t c = 0; c < columns; ++c) {
      float line[kUnit];
      for (int64_t i = 0; i < kUnit; ++i) line[i] = load(source + i * from_row + c);
      float* target = to + c * to_row + r;
      for (int64_t i = 0; i < kUnit; ++i) target[i] = line[i];
    }
  }
  if (r == rows) return;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t i = 0; i < kUnit; ++i) {
      to[c * to_row + r + i] = r + i < rows ? load(from + (r + i) * from_row + c) : 0.0F;
    }
  }
}

template <typename T>
STEPFORGE_INLINE void narrow_rows_body(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                                       const float* factor_of_row, float factor, T* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* source = from + r * from_row;
    T* target = to + r * to_row;
    const float scale = factor_of_row == nullptr ? factor : factor * factor_of_row[r];
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) store(target + c, source[c] * scale);
  }
}

}  // namespace

STEPFORGE_SIMD_CLONES void widen_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                                      float factor, float* to, int64_t padded) {
  widen_rows_body(from, from_row, rows, columns, factor, to, padded);
}
STEPFORGE_SIMD_CLONES void widen_rows(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns,
                                      float factor, float* to, int64_t padded) {
  widen_rows_body(from, from_row, rows, columns, factor, to, padded);
}
STEPFORGE_SIMD_CLONES void widen_transposed(const float* from, int64_t from_row, int64_t rows,
                                            int64_t columns, float* to, int64_t to_row) {
  widen_transposed_body(from, from_row, rows, columns, to, to_row);
}
STEPFORGE_SIMD_CLONES void widen_transposed(const BFloat16* from, int64_t from_row, int64_t rows,
                                            int64_t columns, float* to, int64_t to_row) {
  widen_transposed_body(from, from_row, rows, columns, to, to_row);
}
STEPFORGE_SIMD_CLONES void narrow_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                                       const float* factor_of_row, float factor, float* to, int64_t to_row) {
  narrow_rows_body(from, from_row, rows, columns, factor_of_row, factor, to, to_row);
}
STEPFORGE_SIMD_CLONES void narrow_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                                       const float* factor_of_row, float factor, BFloat16* to,
                                       int64_t to_row) {
  narrow_rows_body(from, from_row, rows, columns, factor_of_row, factor, to, to_row);
}

}  // namespace stepforge::cpu
