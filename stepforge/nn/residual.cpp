// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/dropout_add.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

namespace {

struct ResidualArguments {
  double dropout = 0.0;
  DropoutKey key;
  TokenCoords coords;
};

struct ResidualFunction : torch::autograd::Function<ResidualFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& branch,
                            const at::Tensor& residual, const ResidualArguments* arguments) {
    dropout_add_forward(branch, residual, arguments->dropout, arguments->key, arguments->coords, branch);
    context->mark_dirty({branch});
    keep_value(*context, "arguments", *arguments);
    return branch;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto& arguments = kept_value<ResidualArguments>(*context, "arguments");
    at::Tensor branch_gradient = gradients[0];
    if (arguments.dropout > 0.0) {
      branch_gradient = at::empty_like(gradients[0]);
      dropout_add_backward(gradients[0], arguments.dropout, arguments.key, arguments.coords, branch_gradient);
    }
    return {branch_gradient, gradients[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor residual_add(const at::Tensor& branch, const at::Tensor& residual, const Context& context,
                        uint64_t site) {
  ResidualArguments arguments{context.dropout, {}, {}};
  if (context.dropout > 0.0) {
    arguments.key = at_site(context.dropout_key, site);
    arguments.coords = {context.batch->row_ids, context.batch->row_positions};
  }
  return ResidualFunction::apply(branch, residual, &arguments);
}

}  // namespace stepforge
