// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/bias.h"

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

/// x with the bias added, grad_bias.
std::vector<at::Tensor> bias_on_device(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& grad,
                                       int64_t shift) {
  const int64_t rows = x.size(0);
  const int64_t width = x.size(1);
  const Guarded values(x, shift);
  const Guarded addends(bias, shift);
  const Guarded grads(grad, shift);
  const Guarded grad_bias({width}, at::kFloat);
  const Guarded workspace({cuda::workspace_of(rows, width)}, at::kFloat);
  cuda::bias_forward(dtype_of(x), values.data(), dtype_of(bias), addends.data(), rows, width, nullptr);
  cuda::bias_backward(dtype_of(x), grads.data(), rows, width, grad_bias.data<float>(),
                      workspace.data<float>(), nullptr);
  return {values.copy(), grad_bias.copy()};
}

/// One rounding of the result; a sum over rows of numbers with random signs.
void expect_bias(int64_t rows, int64_t width, at::ScalarType type, at::ScalarType bias_type,
                 int64_t shift = 0) {
  const at::Tensor x = random_tensor({rows, width}, 1).to(type);
  const at::Tensor bias = random_tensor({width}, 2).to(bias_type);
  const at::Tensor grad = random_tensor({rows, width}, 3).to(type);
  const auto actual = in_both_orders([&] { return bias_on_device(x, bias, grad, shift); });
  const at::Tensor out = wide(x);
  const at::Tensor grad_bias = at::empty({width}, at::kDouble);
  reference::bias_forward(out, wide(bias));
  reference::bias_backward(wide(grad), grad_bias);
  expect_close(actual[0], out, tolerance_of(type, 1), "out");
  expect_close(actual[1], grad_bias, 64 * kEps32, "grad_bias");
}

TEST(CudaBias, AgreesWithTheFp64Reference) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {0, 1, 5, 33}) {
      expect_bias(rows, width, at::kFloat, at::kFloat);
      expect_bias(rows, width, at::kBFloat16, at::kBFloat16);
      expect_bias(rows, width, at::kBFloat16, at::kFloat);
    }
  }
}

TEST(CudaBias, MemoryNeedNotBeAligned) {
  expect_bias(3, 64, at::kFloat, at::kFloat, /*shift=*/1);
  expect_bias(3, 64, at::kBFloat16, at::kBFloat16, /*shift=*/1);
}

TEST(CudaBias, MoreRowsThanBlocksAreAllComputed) {
  expect_bias(2 * cuda::kMaxBlocks + 3, 4, at::kFloat, at::kFloat);
}

}  // namespace
}  // namespace stepforge::testing
