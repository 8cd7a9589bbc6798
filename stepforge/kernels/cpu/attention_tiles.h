// SPDX-License-Identifier: Apache-2.0
// Attention in bf16 by matrix tiles (AMX): blocks of operands in pairs, which lie along the depth of a product (bf16_factor.h), and
// products with sums in fp32. Probabilities and gradients of scores are rounded to bf16 before they are multiplied.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {

/// Whether this processor has tiles, head sizes are even and at most 256, and rows of k and v begin at whole pairs. `inputs`: bf16.
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

/// Steps of depth of a product over keys, the last of which are 0: a multiple of what one instruction takes, so that it sums the
/// same keys whatever block of queries they are multiplied with.
constexpr int64_t tile_depth(int64_t numbers) {
  return round_up(numbers, 2 * kColumnUnit);
}

/// The distance of rows in the block of keys from `key` on, of `keys` keys: one of few, since oneDNN makes and keeps a kernel for each.
constexpr int64_t key_block_row(int64_t keys, int64_t key) {
  return std::min(kKeyBlock, round_up(keys - key, kColumnUnit));
}
/// Blocks of kKeyBlock rows, which begin at to + row * columns / 2: block[k, r] = the pair at k of row r. Rows of a block are
/// key_block_row() apart and filled with 0.
void pack_key_blocks(const BFloat16* from, int64_t from_row, int64_t keys, int64_t columns, float* to);

/// to[r / 2, c] = the pair of rows r and r + 1, columns filled with 0 up to `to_row`; then rows of 0 up to `to_rows`.
void pack_paired_rows(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                      int64_t to_row, int64_t to_rows);

/// Of a block of scores, rows kKeyBlock apart, rounded: to[c, r / 2] = the pair of rows r and r + 1 in column c, kQueryBlock / 2 pairs
/// apart, then 0 up to a multiple of kColumnUnit rows. `space`: for kQueryBlock / 2 * kKeyBlock pairs.
void narrow_scores_transposed(const float* from, int64_t rows, int64_t columns, float* space, float* to);

}  // namespace stepforge::cpu
