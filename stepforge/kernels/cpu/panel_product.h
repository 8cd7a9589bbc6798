// SPDX-License-Identifier: Apache-2.0
// Products of some rows with a matrix of which little is in a cache: c = a b or c += a b. One panel of b is packed while all
// rows pass, and the next one is fetched from memory during their product.
//
// An element of a and b is an fp32 number, or a pair of bf16, which are two steps of depth (pair_product.h).
#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>

#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge::cpu {

/// The most steps of depth in a panel.
inline constexpr int64_t kPanelDepth = 512;
/// The most rows of a product.
inline constexpr int64_t kPanelProductRows = kGroupRows > kGroupWeightRows ? kGroupRows : kGroupWeightRows;

enum class RightOrder : uint8_t {
  rows,       ///< `stride` elements apart
  columns,    ///< `stride` elements apart: a transpose
  bf16_rows,  ///< `stride` numbers of bf16 apart: two of them are one row of pairs
};

/// [depth, columns]
struct RightFactor {
  const void* data = nullptr;
  RightOrder order = RightOrder::rows;
  int64_t stride = 0;
};

/// [rows, columns], rows `row` elements apart. Written to `data`, or rounded to `narrow`.
struct PanelResult {
  float* data = nullptr;
  c10::BFloat16* narrow = nullptr;
  int64_t row = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

/// A product over `depth` numbers.
struct PanelProduct {
  const float* a = nullptr;  ///< [c.rows, depth], rows `a_row` elements apart, c.rows <= kPanelProductRows
  int64_t a_row = 0;
  RightFactor b;
  int64_t depth = 0;
  PanelResult c;
  bool accumulate = false;    ///< c += a b
  RightFactor next;           ///< the right factor of the next product
  bool non_temporal = false;  ///< c is fp32, and read again only when no cache has it any more
};

/// Each element of c is a sum over depth in order: it does not depend on what else is computed. `pairs`: of bf16, which need
/// pair_product().
void multiply_panels(const PanelProduct& p, bool pairs);

/// Rows [rows, columns], `stride` apart, to [(rows + 1) / 2, columns] pairs, `to_row` apart. A last row is paired with 0.
/// columns <= kPanelProductRows.
void pair_all_rows(const c10::BFloat16* from, int64_t stride, int64_t rows, int64_t columns, float* to,
                   int64_t to_row);

}  // namespace stepforge::cpu
