// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/grouped_product.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/bf16_product.h"
#include "stepforge/kernels/cpu/block_gemm.h"
#include "stepforge/kernels/cpu/pair_product.h"
#include "stepforge/kernels/cpu/panel_product.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/modelspec/kernel_tiles.h"

namespace stepforge::cpu {
namespace {

/// Gradients of so many elements have left the caches before anything reads them: they are written by non-temporal stores.
constexpr int64_t kNonTemporalElements = 16 << 20;

/// Distance of rows of gradients: not a power of two, so that a column of them is not in one set of a cache.
constexpr int64_t kLeftRow = kPanelDepth + 16;

/// Rows or columns [begin, end) of what is divided: tokens of an expert, or features of its weight.
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
    for (size_t i = next++; i < tiles.size(); i = next++)
      body(tiles[i], tiles[std::min(i + 1, tiles.size() - 1)]);
  });
}

/// The product of the tile's rows of x and its expert's weight. `next`: the tile after it.
void multiply_tokens(const at::Tensor& x, const at::Tensor& weights, const Tile& tile, const Tile& next,
                     const at::Tensor& out) {
  const bool pairs = x.scalar_type() == at::kBFloat16;
  const bool transposed = weights.stride(2) == 1;
  const int64_t bytes = static_cast<int64_t>(x.element_size());
  const auto weight_of = [&](const Tile& of) {
    const char* data =
        static_cast<const char*>(weights.const_data_ptr()) + of.expert * weights.stride(0) * bytes;
    if (transposed) return RightFactor{data, RightOrder::columns, weights.stride(1) / (pairs ? 2 : 1)};
    return RightFactor{data, pairs ? RightOrder::bf16_rows : RightOrder::rows, weights.stride(2)};
  };
  const auto* rows = static_cast<const char*>(x.const_data_ptr()) + tile.begin * x.size(1) * bytes;
  const int64_t first = tile.begin * out.size(1);
  multiply_panels({.a = reinterpret_cast<const float*>(rows),
                   .a_row = x.size(1) / (pairs ? 2 : 1),
                   .b = weight_of(tile),
                   .depth = x.size(1),
                   .c = {pairs ? nullptr : out.mutable_data_ptr<float>() + first,
                         pairs ? out.mutable_data_ptr<BFloat16>() + first : nullptr, out.size(1),
                         tile.end - tile.begin, out.size(1)},
                   .accumulate = false,
                   .next = weight_of(next)},
                  pairs);
}

/// The columns of a tile of gradients, [end - begin, columns], as rows of at most kPanelDepth elements.
void transpose_gradients(const at::Tensor& grad_out, const Tile& tile, int64_t begin, int64_t end,
                         float* to) {
  const int64_t width = grad_out.size(1);
  const int64_t rows = tile.end - tile.begin;
  if (grad_out.scalar_type() == at::kFloat) {
    block_gemm().transpose(grad_out.const_data_ptr<float>() + begin * width + tile.begin, width, end - begin,
                           rows, to, kLeftRow);
    return;
  }
  alignas(64) float pairs[kPanelDepth * kGroupWeightRows];
  pair_all_rows(grad_out.const_data_ptr<BFloat16>() + begin * width + tile.begin, width, end - begin, rows,
                pairs, kGroupWeightRows);
  block_gemm().transpose(pairs, kGroupWeightRows, (end - begin + 1) / 2, rows, to, kLeftRow);
}

/// Rows [tile.begin, tile.end) of the gradient of a weight, `target`, from tokens [begin, end).
void multiply_gradients(const at::Tensor& grad_out, const at::Tensor& x, const Tile& tile, int64_t begin,
                        int64_t end, const at::Tensor& target, bool accumulate, bool non_temporal) {
  alignas(64) float left[kGroupWeightRows * kLeftRow];
  const bool pairs = x.scalar_type() == at::kBFloat16;
  const int64_t most = pairs ? 2 * kPanelDepth : kPanelDepth;
  for (int64_t n = begin; n < end; n += most) {
    const int64_t part = std::min(most, end - n);
    transpose_gradients(grad_out, tile, n, n + part, left);
    const char* right =
        static_cast<const char*>(x.const_data_ptr()) + n * x.size(1) * static_cast<int64_t>(x.element_size());
    const RightFactor tokens{right, pairs ? RightOrder::bf16_rows : RightOrder::rows, x.size(1)};
    multiply_panels(
        {.a = left,
         .a_row = kLeftRow,
         .b = tokens,
         .depth = part,
         .c = {target.mutable_data_ptr<float>(), nullptr, x.size(1), tile.end - tile.begin, x.size(1)},
         .accumulate = accumulate || n > begin,
         .next = tokens,
         .non_temporal = non_temporal && n + part == end},
        pairs);
  }
}

/// Whether bf16_product.h computes it: bf16 that a processor does not multiply in pairs, or multiplies in tiles.
bool is_in_blocks(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.size(1) > 0 &&
         (bf16_blocks() == Bf16Blocks::tiles || bf16_blocks() == Bf16Blocks::widened);
}

/// Of fp32, or of pairs of bf16 along the depth.
bool is_in_panels(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || (pair_product() != nullptr && x.size(1) % 2 == 0);
}

/// Every tile has some columns of an expert, whose weight is packed once for all its rows.
void multiply_blocks(const at::Tensor& x, const at::Tensor& weights, std::span<const int64_t> offsets,
                     const at::Tensor& out) {
  std::vector<Tile> tiles;
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e] < offsets[e + 1])
      add_tiles(tiles, static_cast<int64_t>(e), 0, out.size(1), kPackedColumns);
  const bool transposed = weights.stride(2) == 1;
  run_tiles(tiles, [&](const Tile& tile, const Tile& /*next*/) {
    const int64_t begin = offsets[static_cast<size_t>(tile.expert)];
    const int64_t end = offsets[static_cast<size_t>(tile.expert) + 1];
    const at::Tensor weight = weights.select(0, tile.expert);
    multiply_bf16_alone({.left = {x.slice(0, begin, end)},
                         .right = {transposed ? weight : weight.t(), transposed},
                         .out = out.slice(0, begin, end),
                         .summand = {}},
                        {0, end - begin}, {tile.begin, tile.end});
  });
}

/// Rows [tile.begin, tile.end) of the gradient of a weight, `target`, from tokens [begin, end).
void multiply_gradient_blocks(const at::Tensor& grad_out, const at::Tensor& x, const Tile& tile,
                              int64_t begin, int64_t end, const at::Tensor& target, bool accumulate,
                              bool non_temporal) {
  // So many that the left factor is packed once.
  constexpr int64_t kTokens = kPackedDepth;
  const int64_t most = bf16_blocks() == Bf16Blocks::widened ? kTokens : 2 * kTokens;
  for (int64_t n = begin; n < end; n += most) {
    const int64_t until = std::min(n + most, end);
    multiply_bf16_alone({.left = {grad_out.slice(0, n, until), /*transposed=*/true},
                         .right = {x.slice(0, n, until)},
                         .out = target,
                         .summand = accumulate || n > begin ? target : at::Tensor(),
                         .non_temporal = non_temporal && until == end},
                        {tile.begin, tile.end}, {0, x.size(1)});
  }
}

}  // namespace

void grouped_product(const at::Tensor& x, const at::Tensor& weights, std::span<const int64_t> offsets,
                     const at::Tensor& out) {
  if (is_in_blocks(x)) return multiply_blocks(x, weights, offsets, out);
  if (!is_in_panels(x)) return reference::grouped_product(x, weights, offsets, out);
  std::vector<Tile> tiles;
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    add_tiles(tiles, static_cast<int64_t>(e), offsets[e], offsets[e + 1], kGroupRows);
  run_tiles(tiles, [&](const Tile& tile, const Tile& next) { multiply_tokens(x, weights, tile, next, out); });
}

void grouped_input_gradient(const at::Tensor& grad_out, const at::Tensor& weights,
                            std::span<const int64_t> offsets, const at::Tensor& grad_x) {
  grouped_product(grad_out, weights.transpose(1, 2), offsets, grad_x);
}

void grouped_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x,
                             std::span<const int64_t> offsets, const at::Tensor& grad_weights,
                             bool accumulate) {
  const bool in_blocks = is_in_blocks(x);
  if (!in_blocks && x.scalar_type() != at::kFloat && pair_product() == nullptr)
    return reference::grouped_weight_gradient(grad_out, x, offsets, grad_weights, accumulate);
  // Of rows of the weights, each summed over all tokens of its expert. Small weights are divided too.
  const int64_t tile_rows = grouped_weight_rows(grad_weights.size(0) * grad_weights.size(1));
  const bool non_temporal = grad_weights.numel() >= kNonTemporalElements;
  std::vector<Tile> tiles;
  for (int64_t e = 0; e < grad_weights.size(0); ++e) add_tiles(tiles, e, 0, grad_weights.size(1), tile_rows);
  run_tiles(tiles, [&](const Tile& tile, const Tile& /*next*/) {
    const int64_t begin = offsets[static_cast<size_t>(tile.expert)];
    const int64_t end = offsets[static_cast<size_t>(tile.expert) + 1];
    const at::Tensor weight = grad_weights.select(0, tile.expert);
    const at::Tensor target = weight.slice(0, tile.begin, tile.end);
    if (begin == end) {
      if (!accumulate) target.zero_();
    } else if (in_blocks) {
      multiply_gradient_blocks(grad_out, x, tile, begin, end, weight, accumulate, non_temporal);
    } else {
      multiply_gradients(grad_out, x, tile, begin, end, target, accumulate, non_temporal);
    }
  });
}

}  // namespace stepforge::cpu
