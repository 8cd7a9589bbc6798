// SPDX-License-Identifier: Apache-2.0
// Parts of the factors of a product of bf16, copied so that they lie side by side (bf16_product.h).
//
// A packed word is 32 bits: a pair of bf16, which are two steps of depth (the second of a last, odd step is 0), or one that is
// widened to fp32.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge::cpu {

/// A matrix, or one of which the transpose is stored.
struct ProductFactor {
  at::Tensor stored;  ///< bf16, contiguous, two dimensions
  bool transposed = false;

  int64_t rows() const { return stored.size(transposed ? 1 : 0); }
  int64_t columns() const { return stored.size(transposed ? 0 : 1); }
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

/// The distance of rows of a packed part of the right factor, and the most columns in one.
inline constexpr int64_t kPackedColumns = 64;
/// The most rows in a packed part of the left factor, and the most words of depth in any.
inline constexpr int64_t kPackedRows = 192;
inline constexpr int64_t kPackedDepth = 256;

/// The words of `depth` numbers.
constexpr int64_t packed_words(int64_t depth, bool pairs) {
  return pairs ? (depth + 1) / 2 : depth;
}

/// to[r, k]: rows and words of depth of a factor [rows, depth], `to_row` apart. At most kPackedRows rows and kPackedDepth words.
void pack_left(const ProductFactor& left, bool pairs, Range rows, Range words, float* to, int64_t to_row);

/// to[k, c]: words of depth and columns of a factor [depth, columns], rows kPackedColumns apart and filled with 0 up to a multiple
/// of kColumnUnit. At most kPackedDepth words and kPackedColumns columns.
void pack_right(const ProductFactor& right, bool pairs, Range words, Range columns, float* to);

}  // namespace stepforge::cpu
