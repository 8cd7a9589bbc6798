// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/column_sums.h"

#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

TEST(CudaColumnSums, PartsFollowFromTheNumberOfRows) {
  for (const int64_t rows : {0, 1, 16, 17, 8192, 8193, 100000}) {
    const int64_t parts = cuda::parts_of(rows);
    EXPECT_LE(parts, 512);
    EXPECT_GE(parts * cuda::rows_of_part(rows), rows);
    EXPECT_LE((parts - 1) * cuda::rows_of_part(rows), std::max<int64_t>(rows - 1, 0));
  }
}

TEST(CudaColumnSums, LeaveOutWhatIsBetweenRows) {
  const at::Tensor values = random_tensor({19, 50}, 5);
  for (const int64_t width : {1, 31, 32, 33, 47}) {
    const auto actual = in_both_orders([&]() -> std::vector<at::Tensor> {
      const Guarded partials(values);
      const Guarded sums({width}, at::kFloat);
      cuda::sum_columns(partials.data<float>() + 2, 19, width, 50, sums.data<float>(), nullptr);
      return {sums.copy()};
    });
    expect_close(actual[0], wide(values).narrow(1, 2, width).sum(0), 16 * kEps32, "sums");
  }
}

TEST(CudaColumnSums, MoreColumnsThanBlocksAreAllSummed) {
  const int64_t width = cuda::kMaxBlocks * 32 + 40;
  const at::Tensor values = random_tensor({9, width}, 6);
  const auto actual = in_both_orders([&]() -> std::vector<at::Tensor> {
    const Guarded partials(values);
    const Guarded sums({width}, at::kFloat);
    cuda::sum_columns(partials.data<float>(), 9, width, width, sums.data<float>(), nullptr);
    return {sums.copy()};
  });
  expect_close(actual[0], wide(values).sum(0), 16 * kEps32, "sums");
}

}  // namespace
}  // namespace stepforge::testing
