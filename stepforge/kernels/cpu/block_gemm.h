// Products of small fp32 blocks that live in cache, for attention: c = a b or c += a b. A BLAS call spends as
// long on its entry as on such a block; these keep a tile of c in registers and read b as it lies.
#pragma once

#include <cstdint>

namespace stepforge::cpu {

/// Row length of a block of scores, hence the number of keys handled at a time.
constexpr int64_t kKeyBlock = 96;
/// Queries handled at a time; divides kKeyBlock, so that a block of keys is never half before a block of
/// queries.
constexpr int64_t kQueryBlock = 48;
/// Rows that share one range of keys under the causal mask; divides kQueryBlock.
constexpr int64_t kStrip = 12;
/// Blocks of b and c have a multiple of this many columns.
constexpr int64_t kColumnUnit = 16;

constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// b: [depth, columns], c: [rows, columns], rows `b_row` and `c_row` elements apart; columns a multiple of
/// kColumnUnit.
struct BlockProduct {
  const float* a;
  int64_t a_row;  ///< elements between rows of a; read by `rows` only
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t rows;
  int64_t columns;
  int64_t depth;
  bool accumulate;
};

/// The three layouts of a that occur. Each element of c is summed over depth in order, whatever the tiles.
struct BlockGemm {
  void (*rows)(const BlockProduct&);           ///< a: [rows, depth], a_row elements apart
  void (*score_rows)(const BlockProduct&);     ///< a: [rows, depth] of a block of scores (kKeyBlock apart)
  void (*score_columns)(const BlockProduct&);  ///< a: the transpose of a block of scores [depth, rows]
};

/// The fastest build for this machine.
const BlockGemm& block_gemm();

}  // namespace stepforge::cpu
