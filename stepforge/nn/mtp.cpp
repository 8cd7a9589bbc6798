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

MtpBlock::MtpBlock(const ParameterLookup& parameters, const std::string& prefix, const std::string& last_norm,
                   const NormConstants& constants, TensorExchange tensor)
    : embedding_norm_(parameters(prefix + ".embedding_norm")),
      last_norm_(parameters(last_norm)),
      hidden_norm_(parameters(prefix + ".hidden_norm")),
      projection_(parameters(prefix + ".projection")),
      constants_(constants),
      tensor_(std::move(tensor)) {}

Bundle MtpBlock::forward(const Bundle& inputs, const Context& context) {
  // Over slices the step sums the gradients of the block's own weights, but that of a head's norm is summed at each use.
  const TensorExchange* summed = takes_slice(tensor_, context) ? &tensor_ : nullptr;
  const at::Tensor embedded = post_norm(inputs.at(1), embedding_norm_, constants_);
  const at::Tensor last = post_norm(inputs.at(0), last_norm_, constants_, summed);
  const at::Tensor hidden = post_norm(last, hidden_norm_, constants_);
  return {linear(join_later(embedded, hidden), projection_)};
}

}  // namespace stepforge
