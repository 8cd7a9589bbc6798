// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/bias.h"

#include <ATen/ops/empty_like.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

TEST(Bias, AgreesWithTheFp64Reference) {
  for (const int64_t width : {1, 7, 64, 257}) {
    for (const int64_t rows : {1, 33, 300}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor x = random_tensor({rows, width}, 1).to(type);
        const at::Tensor bias = random_tensor({width}, 2).to(type);
        const at::Tensor expected = x.to(at::kDouble);
        reference::bias_forward(expected, bias.to(at::kDouble));
        bias_forward(x, bias);
        expect_close(x, expected, type == at::kFloat ? kEps32 : kEps16, "x");
        const at::Tensor grad = random_tensor({rows, width}, 3).to(type);
        const at::Tensor actual_grad = at::empty({width});
        const at::Tensor expected_grad = at::empty({width}, at::kDouble);
        bias_backward(grad, actual_grad);
        reference::bias_backward(grad.to(at::kDouble), expected_grad);
        expect_close(actual_grad, expected_grad, 64 * kEps32, "grad_bias");
      }
    }
  }
}

TEST(Bias, GradientDoesNotDependOnTheNumberOfThreads) {
  const at::Tensor grad = random_tensor({1000, 50}, 4);
  expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
    const at::Tensor grad_bias = at::empty({50});
    bias_backward(grad, grad_bias);
    return {grad_bias};
  });
}

TEST(Bias, OfAnotherWidthIsRefused) {
  EXPECT_THROW(bias_forward(random_tensor({3, 4}, 1), random_tensor({5}, 2)), Error);
}

}  // namespace
}  // namespace stepforge::testing
