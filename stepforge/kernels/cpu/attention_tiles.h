// SPDX-License-Identifier: Apache-2.0
// Attention in bf16 by matrix tiles (AMX): blocks of operands in pairs, which lie along the depth of a product (bf16_factor.h), and
// products with sums in fp32. Probabilities and gradients of scores are rounded to bf16 before they are multiplied.
#pragma once

#include <cstdint>

#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {

/// Whether this processor has tiles and rows of heads are pairs. `inputs`: bf16.
bool attention_in_tiles(const QueryKeyValue& inputs, const AttentionShape& shape);

/// c = a b or c += a b.
struct TileProduct {
  const BFloat16* a;  ///< [rows, depth], rows `a_row` numbers apart
  int64_t a_row;
  const float* b;  ///< [depth / 2, columns] of pairs, rows `b_row` pairs apart
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t rows;
  int64_t columns;  ///< a multiple of kColumnUnit
  int64_t depth;    ///< even
  bool accumulate;
};
void multiply_tiles(const TileProduct& product);

/// After the last product of a task.
void release_tiles();

/// to[k, r] = the pair at k of row r; rows of `to` are `to_row` apart and filled with 0 from `rows` up to a multiple of kColumnUnit.
void pack_pairs_transposed(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                           int64_t to_row);

/// to[r / 2, c] = the pair of rows r and r + 1, columns filled with 0 up to `to_row`; then rows of 0 up to `to_rows`.
void pack_paired_rows(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                      int64_t to_row, int64_t to_rows);

/// Of a block of scores, rows kKeyBlock apart, rounded: to[c, r / 2] = the pair of rows r and r + 1 in column c, kQueryBlock / 2 pairs
/// apart. `space`: for kQueryBlock / 2 * kKeyBlock pairs.
void narrow_scores_transposed(const float* from, int64_t rows, int64_t columns, float* space, float* to);

}  // namespace stepforge::cpu
