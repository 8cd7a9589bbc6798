// SPDX-License-Identifier: Apache-2.0
// Products of small fp32 blocks in cache, for attention and experts: c = a b or c += a b. For such a block the overhead
// of a BLAS call is as large as the product. These keep a tile of c in registers and read b in place.
#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>

#include "stepforge/kernels/cpu/fetch_ahead.h"
#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge::cpu {

/// b: [depth, columns], c: [rows, columns], rows `b_row` and `c_row` elements apart; columns a multiple of
/// kColumnUnit.
struct BlockProduct {
  const float* a = nullptr;
  int64_t a_row = 0;  ///< elements between rows of a; used by `rows` and `rows_ahead` only
  const float* b = nullptr;
  int64_t b_row = 0;
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  bool accumulate = false;
  FetchAhead* ahead = nullptr;  ///< used by `rows_ahead` only, which moves it on
  /// Whether pair_product() writes c by non-temporal stores; c and its rows must begin at multiples of 64 bytes.
  bool non_temporal = false;
  /// If not null, pair_product() rounds c to it, rows `rounded_row` elements apart, and does not write c.
  c10::BFloat16* rounded = nullptr;
  int64_t rounded_row = 0;
};

/// One function per layout of a. Each element of c is summed over depth in order, whatever the tiles.
struct BlockGemm {
  void (*rows)(const BlockProduct&);           ///< a: [rows, depth], a_row elements apart
  void (*rows_ahead)(const BlockProduct&);     ///< the same
  void (*score_rows)(const BlockProduct&);     ///< a: [rows, depth] of a block of scores (kKeyBlock apart)
  void (*score_columns)(const BlockProduct&);  ///< a: the transpose of a block of scores [depth, rows]
  /// to[c, r] = from[r, c] for from [rows, columns], rows of both `from_row` and `to_row` elements apart.
  void (*transpose)(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                    int64_t to_row);
};

/// The fastest build for this machine.
const BlockGemm& block_gemm();

}  // namespace stepforge::cpu
