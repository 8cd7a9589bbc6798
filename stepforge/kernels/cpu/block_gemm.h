// SPDX-License-Identifier: Apache-2.0
// Products of small fp32 blocks that live in cache, for attention: c = a b or c += a b. A BLAS call spends as
// long on its entry as on such a block; these keep a tile of c in registers and read b as it lies.
#pragma once

#include <cstdint>

#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge::cpu {

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
