// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu/panel_product.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "stepforge/kernels/cpu/block_gemm.h"
#include "stepforge/kernels/cpu/pair_product.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

constexpr int64_t kPanelColumns = 64;
constexpr int64_t kRowsOfProduct = 6;  // that a product has in registers

/// A part of the right factor.
struct Panel {
  int64_t k;
  int64_t depth;
  int64_t column;
  int64_t columns;
};

/// All panels, in equal parts of the depth and by rising column.
std::vector<Panel> panels_of(int64_t depth, int64_t columns) {
  const int64_t parts = (depth + kPanelDepth - 1) / kPanelDepth;
  std::vector<Panel> panels;
  for (int64_t column = 0; column < columns; column += kPanelColumns) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t k = depth * part / parts;
      panels.push_back(
          {k, depth * (part + 1) / parts - k, column, std::min(kPanelColumns, columns - column)});
    }
  }
  return panels;
}

const float* begin_of(const RightFactor& b, const Panel& panel) {
  if (b.order == RightOrder::columns)
    return static_cast<const float*>(b.data) + panel.column * b.stride + panel.k;
  return static_cast<const float*>(b.data) + panel.k * b.stride + panel.column;
}

const BFloat16* bf16_begin_of(const RightFactor& b, const Panel& panel) {
  return static_cast<const BFloat16*>(b.data) + 2 * panel.k * b.stride + panel.column;
}

STEPFORGE_SIMD_CLONES void pair_rows(const BFloat16* first, const BFloat16* second, int64_t columns,
                                     uint32_t* to) {
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) to[c] = first[c].x | static_cast<uint32_t>(second[c].x) << 16;
}

/// Copies it, followed by columns of 0 up to a multiple of kColumnUnit. `rows`: of bf16.
void pack_panel(const RightFactor& b, const Panel& panel, int64_t rows, float* to) {
  if (panel.columns % kColumnUnit != 0) std::fill_n(to, panel.depth * kPanelColumns, 0.0F);
  if (b.order == RightOrder::bf16_rows) {
    pair_all_rows(bf16_begin_of(b, panel), b.stride, std::min(2 * panel.depth, rows - 2 * panel.k),
                  panel.columns, to, kPanelColumns);
  } else if (b.order == RightOrder::columns) {
    block_gemm().transpose(begin_of(b, panel), b.stride, panel.columns, panel.depth, to, kPanelColumns);
  } else {
    for (int64_t k = 0; k < panel.depth; ++k)
      std::copy_n(begin_of(b, panel) + k * b.stride, panel.columns, to + k * kPanelColumns);
  }
}

/// A product of `rows` rows and `depth` fetches the lines of a panel.
FetchAhead fetch_of(const RightFactor& b, const Panel& panel, int64_t rows, int64_t depth) {
  FetchAhead ahead{begin_of(b, panel), b.stride, panel.depth, panel.columns / kColumnUnit};
  if (b.order == RightOrder::columns)
    ahead = {begin_of(b, panel), b.stride, panel.columns, panel.depth / kColumnUnit};
  if (b.order == RightOrder::bf16_rows)
    ahead = {reinterpret_cast<const float*>(bf16_begin_of(b, panel)), b.stride / 2, 2 * panel.depth,
             panel.columns / (2 * kColumnUnit)};
  const int64_t steps = (rows + kRowsOfProduct - 1) / kRowsOfProduct * depth;
  while (2 * (ahead.skipped + 1) * ahead.rows * ahead.lines <= steps && ahead.skipped < depth)
    ahead.skipped = 2 * ahead.skipped + 1;
  return ahead;
}

template <typename Element>
void copy_rows(const Element* from, int64_t from_row, Element* to, int64_t to_row, int64_t rows,
               int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * from_row, columns, to + r * to_row);
}

/// Whether rows begin where lines of a cache do.
bool is_aligned(const float* rows, int64_t stride) {
  constexpr uintptr_t kLine = 64;
  return reinterpret_cast<uintptr_t>(rows) % kLine == 0 && static_cast<uintptr_t>(stride) % 16 == 0;
}

}  // namespace

void pair_all_rows(const BFloat16* from, int64_t stride, int64_t rows, int64_t columns, float* to,
                   int64_t to_row) {
  const std::array<BFloat16, kPanelProductRows> zeros = {};
  for (int64_t r = 0; r < rows; r += 2) {
    pair_rows(from + r * stride, r + 1 < rows ? from + (r + 1) * stride : zeros.data(), columns,
              reinterpret_cast<uint32_t*>(to + r / 2 * to_row));
  }
}

void multiply_panels(const PanelProduct& p, bool pairs) {
  alignas(64) float packed[kPanelDepth * kPanelColumns];
  // Sums that have no place in c: of columns that do not fill a vector, and those that c takes rounded.
  alignas(64) float edge[kPanelProductRows * kPanelColumns];
  alignas(64) BFloat16 rounded_edge[kPanelProductRows * kPanelColumns];
  const auto product = pairs ? pair_product() : block_gemm().rows_ahead;
  const int64_t depth = pairs ? (p.depth + 1) / 2 : p.depth;
  const PanelResult& c = p.c;
  const std::vector<Panel> panels = panels_of(depth, c.columns);
  for (size_t i = 0; i < panels.size(); ++i) {
    const Panel& panel = panels[i];
    const bool adds = p.accumulate || panel.k > 0;
    const bool ragged = panel.columns % kColumnUnit != 0;
    const bool rounds = c.narrow != nullptr && panel.k + panel.depth == depth;
    float* const target = c.narrow != nullptr ? nullptr : c.data + panel.column;
    const bool direct = target != nullptr && !ragged;
    if (target != nullptr && ragged && adds)
      copy_rows(target, c.row, edge, kPanelColumns, c.rows, panel.columns);
    pack_panel(p.b, panel, p.depth, packed);
    // Weights are read once for each tile: the next panel is in no cache.
    const bool last = i + 1 == panels.size();
    FetchAhead ahead = fetch_of(last ? p.next : p.b, panels[last ? 0 : i + 1], c.rows, panel.depth);
    product({.a = p.a + panel.k,
             .a_row = p.a_row,
             .b = packed,
             .b_row = kPanelColumns,
             .c = direct ? target : edge,
             .c_row = direct ? c.row : kPanelColumns,
             .rows = c.rows,
             .columns = round_up(panel.columns, kColumnUnit),
             .depth = panel.depth,
             .accumulate = adds,
             .ahead = &ahead,
             .non_temporal =
                 p.non_temporal && direct && panel.k + panel.depth == depth && is_aligned(target, c.row),
             .rounded = !rounds  ? nullptr
                        : ragged ? rounded_edge
                                 : c.narrow + panel.column,
             .rounded_row = ragged ? kPanelColumns : c.row});
    if (!ragged) continue;
    if (target != nullptr) copy_rows(edge, kPanelColumns, target, c.row, c.rows, panel.columns);
    if (rounds) copy_rows(rounded_edge, kPanelColumns, c.narrow + panel.column, c.row, c.rows, panel.columns);
  }
}

}  // namespace stepforge::cpu
