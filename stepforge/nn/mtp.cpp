// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/mtp.h"

#include <utility>

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

namespace stepforge {

namespace {

/// Unlike that of cat(), its backward makes contiguous gradients, which norms need.
struct JoinFunction : torch::autograd::Function<JoinFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& later,
                            const at::Tensor& own) {
    return at::cat({later, own}, 1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const int64_t width = gradients[0].size(1) / 2;
    return {gradients[0].narrow(1, 0, width).contiguous(), gradients[0].narrow(1, width, width).contiguous()};
  }
};

}  // namespace

at::Tensor join_later(const at::Tensor& later, const at::Tensor& own) {
  return JoinFunction::apply(later, own);
}

}  // namespace stepforge
