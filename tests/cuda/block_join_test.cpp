// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/block_join.h"

#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

__global__ void sums_of_blocks(const float* in, float* out) {
  __shared__ cuda::WarpValues<float> of_warps;
  const auto own = std::size_t{threadIdx.x};
  out[2 * own] = cuda::join_in_block(in[own], cuda::Sum(), 0.0F, of_warps);
  out[2 * own + 1] = cuda::join_in_block(in[own], cuda::Largest(), -1e30F, of_warps);
}

TEST(CudaBlockJoin, EveryThreadGetsTheSumAndTheLargestOfItsBlock) {
  for (const unsigned threads : {32U, 64U, 224U, 1024U}) {
    const at::Tensor in = at::arange(threads, at::kFloat);
    const auto out = in_both_orders([&]() -> std::vector<at::Tensor> {
      const Guarded input(in);
      const Guarded output({int64_t{threads}, 2}, at::kFloat);
      LAUNCH(sums_of_blocks, 1, threads, nullptr, input.data<float>(), output.data<float>());
      return {output.copy()};
    })[0];
    const float n = static_cast<float>(threads);
    EXPECT_TRUE(out.select(1, 0).eq(n * (n - 1) / 2).all().item<bool>());
    EXPECT_TRUE(out.select(1, 1).eq(n - 1).all().item<bool>());
  }
}

}  // namespace
}  // namespace stepforge::testing
