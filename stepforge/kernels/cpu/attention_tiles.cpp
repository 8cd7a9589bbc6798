// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/attention_tiles.h"

#include <algorithm>
#include <array>

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/cpu/block_gemm.h"

namespace stepforge::cpu {
namespace {

STEPFORGE_INLINE uint32_t rounded_bits(float value) {
  BFloat16 narrow{};
  store(&narrow, value);
  return narrow.x;
}

STEPFORGE_SIMD_CLONES void narrow_pairs(const float* first, const float* second, int64_t columns,
                                        uint32_t* to) {
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) to[c] = rounded_bits(first[c]) | rounded_bits(second[c]) << 16;
}

}  // namespace

void multiply_tiles(const BlockProduct& product) {
  BlockProduct part = product;
  for (int64_t row = 0; row < product.rows; row += part.rows) {
    part.rows = tile_rows(product.rows - row);
    part.a = product.a + row * product.a_row;
    part.c = product.c + row * product.c_row;
    multiply_block(Bf16Blocks::tiles, part);
  }
}

void multiply_scores(bool tiles, const BlockProduct& product, int64_t filled, float* space) {
  if (!tiles) return block_gemm().score_rows(product);
  narrow_rows(product.a, kKeyBlock, product.rows, filled, nullptr, 1.0F, reinterpret_cast<BFloat16*>(space),
              kKeyBlock);
  BlockProduct narrow = product;
  narrow.a = space;
  narrow.a_row = kKeyBlock / 2;
  narrow.depth = filled / 2;
  multiply_tiles(narrow);
}

void release_tiles() {
  release_blocks(Bf16Blocks::tiles);
}

void pack_key_blocks(const BFloat16* from, int64_t from_row, int64_t keys, int64_t columns, float* to) {
  for (int64_t key = 0; key < keys; key += kKeyBlock) {
    const int64_t rows = std::min(kKeyBlock, keys - key);
    const int64_t to_row = key_block_row(keys, key);
    float* const block = to + key * (columns / 2);
    block_gemm().transpose(reinterpret_cast<const float*>(from + key * from_row), from_row / 2, rows,
                           columns / 2, block, to_row);
    for (int64_t k = 0; rows < to_row && k < columns / 2; ++k)
      std::fill_n(block + k * to_row + rows, to_row - rows, 0.0F);
  }
}

void pack_paired_rows(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                      int64_t to_row, int64_t to_rows) {
  const int64_t pairs = (rows + 1) / 2;
  pair_all_rows(from, from_row, rows, columns, to, to_row);
  for (int64_t r = 0; columns < to_row && r < pairs; ++r)
    std::fill_n(to + r * to_row + columns, to_row - columns, 0.0F);
  std::fill_n(to + pairs * to_row, (to_rows - pairs) * to_row, 0.0F);
}

void narrow_scores_transposed(const float* from, int64_t rows, int64_t columns, float* space, float* to) {
  const std::array<float, kKeyBlock> zeros = {};
  for (int64_t r = 0; r < rows; r += 2) {
    const float* second = r + 1 < rows ? from + (r + 1) * kKeyBlock : zeros.data();
    narrow_pairs(from + r * kKeyBlock, second, columns,
                 reinterpret_cast<uint32_t*>(space + r / 2 * kKeyBlock));
  }
  const int64_t pairs = (rows + 1) / 2;
  const int64_t filled = round_up(rows, kColumnUnit) / 2;
  std::fill_n(space + pairs * kKeyBlock, (filled - pairs) * kKeyBlock, 0.0F);
  block_gemm().transpose(space, kKeyBlock, filled, columns, to, kQueryBlock / 2);
}

}  // namespace stepforge::cpu
