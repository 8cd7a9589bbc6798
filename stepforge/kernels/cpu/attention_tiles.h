// SPDX-License-Identifier: Apache-2.0
// Attention in bf16 by matrix tiles (AMX): blocks of operands in pairs, which lie along the depth of a product (bf16_factor.h), and
// products with sums in fp32. Probabilities and gradients of scores are rounded to bf16 before they are multiplied.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/cpu/bf16_blocks.h"
#include "stepforge/kernels/cpu/panel_product.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {

/// Whether this processor has tiles, head sizes are even and at most 256, and rows of q, k and v begin at whole pairs. T: of their elements.
template <typename T>
bool attention_in_tiles(const QueryKeyValue& inputs, const AttentionShape& shape) {
  const auto fits = [](int64_t dim) {
    return dim % 2 == 0 && dim <= kPanelProductRows;
  };  // of pair_all_rows()
  const auto pairs = [](const at::Tensor& rows) { return rows.stride(0) % 2 == 0; };
  return std::is_same_v<T, BFloat16> && bf16_blocks() == Bf16Blocks::tiles && fits(shape.head_dim) &&
         fits(shape.value_size()) && pairs(inputs.q) && pairs(inputs.k) && pairs(inputs.v);
}

/// Numbers that are bf16, as attention_in_tiles() says.
template <typename T>
const BFloat16* as_bf16(const T* numbers) {
  return reinterpret_cast<const BFloat16*>(numbers);
}
template <typename T>
const float* as_pairs(const T* numbers) {
  return reinterpret_cast<const float*>(numbers);
}

/// As BlockGemm::rows, of pairs.
void multiply_tiles(const BlockProduct& product);

/// Scores times keys or values, as BlockGemm::score_rows. In tiles `filled` scores, of which the last are 0, are rounded first, to `space`.
void multiply_scores(bool tiles, const BlockProduct& product, int64_t filled, float* space);

/// After the last product of a task in tiles.
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
