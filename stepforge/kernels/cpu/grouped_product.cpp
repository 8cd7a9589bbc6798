// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/grouped_product.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

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
    for (size_t i = next++; i < tiles.size(); i = next++) body(tiles[i]);
  });
}

}  // namespace

void grouped_product(const at::Tensor& x, const at::Tensor& weights, std::span<const int64_t> offsets,
                     const at::Tensor& out) {
  std::vector<Tile> tiles;
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    add_tiles(tiles, static_cast<int64_t>(e), offsets[e], offsets[e + 1], kGroupRows);
  run_tiles(tiles, [&](const Tile& tile) {
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
  run_tiles(tiles, [&](const Tile& tile) {
    const int64_t begin = offsets[static_cast<size_t>(tile.expert)];
    const int64_t end = offsets[static_cast<size_t>(tile.expert) + 1];
    at::Tensor target = grad_weights.select(0, tile.expert).slice(0, tile.begin, tile.end);
    if (begin == end) {
      if (!accumulate) target.zero_();
      return;
    }
    const at::Tensor left = grad_out.slice(0, begin, end).slice(1, tile.begin, tile.end).t();
    const at::Tensor right = x.slice(0, begin, end);
    if (narrow) {
      at::Tensor product = products.select(0, at::get_thread_num()).slice(0, 0, tile.end - tile.begin);
      at::mm_out(product, left, right);
      write_or_add(target, product, accumulate);
    } else if (accumulate) {
      at::addmm_out(target, target, left, right);
    } else {
      at::mm_out(target, left, right);
    }
  });
}

}  // namespace stepforge::cpu
