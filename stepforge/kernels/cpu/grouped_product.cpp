// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/grouped_product.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "stepforge/kernels/cpu/block_gemm.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/modelspec/kernel_tiles.h"

/// Of MKL; null if libtorch has another library. Sets how many threads a product that this thread calls may use, and returns
/// what it was before; 0: the number for all threads.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace stepforge::cpu {
namespace {

/// While it exists, a product that this thread calls runs on this thread alone. That is so in any case inside a parallel
/// region, but MKL chooses its kernel by the number of threads that it might use.
class OneThread {
 public:
  OneThread() : before_(MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~OneThread() {
    if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// Rows [begin, end) of what is divided: tokens of an expert, or rows of its weight.
struct Tile {
  int64_t expert;
  int64_t begin;
  int64_t end;
};

/// Adds equal parts of [begin, end), each of at most `largest`.
void add_tiles(std::vector<Tile>& tiles, int64_t expert, int64_t begin, int64_t end, int64_t largest) {
  const int64_t parts = (end - begin + largest - 1) / largest;
  for (int64_t part = 0; part < parts; ++part) {
    tiles.push_back(
        {expert, begin + (end - begin) * part / parts, begin + (end - begin) * (part + 1) / parts});
  }
}

/// A thread takes the next tile when it has finished one. What a tile holds does not depend on which thread computes it.
template <typename Body>
void run_tiles(const std::vector<Tile>& tiles, const Body& body) {
  std::atomic<size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    const at::NoGradGuard no_grad;  // of this thread
    const OneThread alone;
    for (size_t i = next++; i < tiles.size(); i = next++)
      body(tiles[i], tiles[std::min(i + 1, tiles.size() - 1)]);
  });
}

/// The right factor is packed in panels of so many rows and columns, which stay in the nearest caches while all rows of
/// the left factor pass.
constexpr int64_t kPanelDepth = 384;
constexpr int64_t kPanelColumns = 64;
constexpr int64_t kRowsOfProduct = 6;  // that a product has in registers
constexpr int64_t kTileRows = std::max(kGroupRows, kGroupWeightRows);

/// [depth, columns]: one of the distances between its elements is 1.
struct RightFactor {
  const float* data;
  int64_t to_next_row;
  int64_t to_next_column;
};

/// [rows, columns], rows `row` elements apart.
struct Result {
  float* data;
  int64_t row;
  int64_t rows;
  int64_t columns;
};

/// A part of the right factor.
struct Panel {
  int64_t k;
  int64_t depth;
  int64_t column;
  int64_t columns;
};

/// All panels, in equal parts of its depth and by rising column.
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
  return b.data + panel.k * b.to_next_row + panel.column * b.to_next_column;
}

/// Copies it, followed by columns of 0 up to a multiple of kColumnUnit.
void pack_panel(const RightFactor& b, const Panel& panel, float* to) {
  if (panel.columns % kColumnUnit != 0) std::fill_n(to, panel.depth * kPanelColumns, 0.0F);
  const float* from = begin_of(b, panel);
  if (b.to_next_row == 1) {
    block_gemm().transpose(from, b.to_next_column, panel.columns, panel.depth, to, kPanelColumns);
    return;
  }
  for (int64_t k = 0; k < panel.depth; ++k)
    std::copy_n(from + k * b.to_next_row, panel.columns, to + k * kPanelColumns);
}

/// A product of `rows` rows and `depth` fetches the lines of a panel.
FetchAhead fetch_of(const RightFactor& b, const Panel& panel, int64_t rows, int64_t depth) {
  FetchAhead ahead =
      b.to_next_row == 1
          ? FetchAhead{begin_of(b, panel), b.to_next_column, panel.columns, panel.depth / kColumnUnit}
          : FetchAhead{begin_of(b, panel), b.to_next_row, panel.depth, panel.columns / kColumnUnit};
  const int64_t steps = (rows + kRowsOfProduct - 1) / kRowsOfProduct * depth;
  while (2 * (ahead.skipped + 1) * ahead.rows * ahead.lines <= steps && ahead.skipped < depth)
    ahead.skipped = 2 * ahead.skipped + 1;
  return ahead;
}

void copy_rows(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
               int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * from_row, columns, to + r * to_row);
}

/// c = a b or c += a b with a: [c.rows, depth], rows `a_row` elements apart, c.rows <= kTileRows. Each element of c is a sum
/// over depth in order: it does not depend on what else is computed. `next`: the right factor of the next product.
void multiply(const float* a, int64_t a_row, const RightFactor& b, int64_t depth, const Result& c,
              bool accumulate, const RightFactor& next) {
  alignas(64) float packed[kPanelDepth * kPanelColumns];
  alignas(64) float edge[kTileRows * kPanelColumns];  // columns of c that do not fill a vector
  const std::vector<Panel> panels = panels_of(depth, c.columns);
  for (size_t i = 0; i < panels.size(); ++i) {
    const Panel& panel = panels[i];
    const bool adds = accumulate || panel.k > 0;
    float* const target = c.data + panel.column;
    const bool ragged = panel.columns % kColumnUnit != 0;
    if (ragged && adds) copy_rows(target, c.row, edge, kPanelColumns, c.rows, panel.columns);
    pack_panel(b, panel, packed);
    // Weights are read once for each tile: the next panel is in no cache.
    const bool last = i + 1 == panels.size();
    FetchAhead ahead = fetch_of(last ? next : b, panels[last ? 0 : i + 1], c.rows, panel.depth);
    block_gemm().rows_ahead({.a = a + panel.k,
                             .a_row = a_row,
                             .b = packed,
                             .b_row = kPanelColumns,
                             .c = ragged ? edge : target,
                             .c_row = ragged ? kPanelColumns : c.row,
                             .rows = c.rows,
                             .columns = round_up(panel.columns, kColumnUnit),
                             .depth = panel.depth,
                             .accumulate = adds,
                             .ahead = &ahead});
    if (ragged) copy_rows(edge, kPanelColumns, target, c.row, c.rows, panel.columns);
  }
}

/// The product of the tile's rows of x and its expert's weight. `next`: the tile after it.
void multiply_tokens(const at::Tensor& x, const at::Tensor& weights, const Tile& tile, const Tile& next,
                     const at::Tensor& out) {
  const auto weight_of = [&](const Tile& of) {
    return RightFactor{weights.const_data_ptr<float>() + of.expert * weights.stride(0), weights.stride(2),
                       weights.stride(1)};
  };
  multiply(x.const_data_ptr<float>() + tile.begin * x.size(1), x.size(1), weight_of(tile), x.size(1),
           {out.mutable_data_ptr<float>() + tile.begin * out.size(1), out.size(1), tile.end - tile.begin,
            out.size(1)},
           /*accumulate=*/false, weight_of(next));
}

/// Rows [tile.begin, tile.end) of the gradient of a weight, `target`, from tokens [begin, end).
void multiply_gradients(const at::Tensor& grad_out, const at::Tensor& x, const Tile& tile, int64_t begin,
                        int64_t end, const at::Tensor& target, bool accumulate) {
  alignas(64) float left[kGroupWeightRows * kPanelDepth];
  for (int64_t n = begin; n < end; n += kPanelDepth) {
    const int64_t part = std::min(kPanelDepth, end - n);
    block_gemm().transpose(grad_out.const_data_ptr<float>() + n * grad_out.size(1) + tile.begin,
                           grad_out.size(1), part, tile.end - tile.begin, left, kPanelDepth);
    const RightFactor right{x.const_data_ptr<float>() + n * x.size(1), x.size(1), 1};
    multiply(left, kPanelDepth, right, part,
             {target.mutable_data_ptr<float>(), x.size(1), tile.end - tile.begin, x.size(1)},
             accumulate || n > begin, right);
  }
}

}  // namespace

void grouped_product(const at::Tensor& x, const at::Tensor& weights, std::span<const int64_t> offsets,
                     const at::Tensor& out) {
  std::vector<Tile> tiles;
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    add_tiles(tiles, static_cast<int64_t>(e), offsets[e], offsets[e + 1], kGroupRows);
  const bool wide = x.scalar_type() == at::kFloat;
  run_tiles(tiles, [&](const Tile& tile, const Tile& next) {
    if (wide) {
      multiply_tokens(x, weights, tile, next, out);
      return;
    }
    at::Tensor rows = out.slice(0, tile.begin, tile.end);
    at::mm_out(rows, x.slice(0, tile.begin, tile.end), weights.select(0, tile.expert).t());
  });
}

void grouped_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x,
                             std::span<const int64_t> offsets, const at::Tensor& grad_weights,
                             bool accumulate) {
  // Of rows of the weights, each summed over all tokens of its expert. Small weights are divided too.
  const int64_t tile_rows = grouped_weight_rows(grad_weights.size(0) * grad_weights.size(1));
  std::vector<Tile> tiles;
  for (int64_t e = 0; e < grad_weights.size(0); ++e) add_tiles(tiles, e, 0, grad_weights.size(1), tile_rows);
  // The CPU has no bf16 product with an fp32 result.
  const bool narrow = x.scalar_type() != grad_weights.scalar_type();
  const at::Tensor products =
      narrow ? at::empty({at::get_num_threads(), tile_rows, x.size(1)}, x.options()) : at::Tensor();
  run_tiles(tiles, [&](const Tile& tile, const Tile& /*next*/) {
    const int64_t begin = offsets[static_cast<size_t>(tile.expert)];
    const int64_t end = offsets[static_cast<size_t>(tile.expert) + 1];
    at::Tensor target = grad_weights.select(0, tile.expert).slice(0, tile.begin, tile.end);
    if (begin == end) {
      if (!accumulate) target.zero_();
      return;
    }
    if (!narrow) {
      multiply_gradients(grad_out, x, tile, begin, end, target, accumulate);
      return;
    }
    const at::Tensor left = grad_out.slice(0, begin, end).slice(1, tile.begin, tile.end).t();
    const at::Tensor right = x.slice(0, begin, end);
    at::Tensor product = products.select(0, at::get_thread_num()).slice(0, 0, tile.end - tile.begin);
    at::mm_out(product, left, right);
    write_or_add(target, product, accumulate);
  });
}

}  // namespace stepforge::cpu
