// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/dropout_add.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

namespace {

struct ResidualArguments {
  bool in_place = true;
  double dropout = 0.0;
  DropoutKey key;
  TokenCoords coords;
};

struct ResidualFunction : torch::autograd::Function<ResidualFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& branch,
                            const at::Tensor& residual, const ResidualArguments* arguments) {
    const at::Tensor out = arguments->in_place ? branch : at::empty_like(branch);
    dropout_add_forward(branch, residual, arguments->dropout, arguments->key, arguments->coords, out);
    if (arguments->in_place) ctx->mark_dirty({branch});
    save_value(*ctx, "arguments", *arguments);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto& arguments = saved_value<ResidualArguments>(*ctx, "arguments");
    at::Tensor branch_gradient = gradients[0];
    if (arguments.dropout > 0.0) {
      branch_gradient = at::empty_like(gradients[0]);
      dropout_add_backward(gradients[0], arguments.dropout, arguments.key, arguments.coords, branch_gradient);
    }
    return {branch_gradient, gradients[0], at::Tensor()};
  }
};

at::Tensor add_residual(const at::Tensor& branch, const at::Tensor& residual, const Context& context,
                        uint64_t site, const TensorExchange& exchange, bool in_place) {
  ResidualArguments arguments{in_place, context.dropout, {}, {}};
  if (context.dropout > 0.0) {
    arguments.key = dropout_key_of_site(context.dropout_key, site);
    const BatchTensors& batch = *context.batch;
    arguments.coords = {batch.row_ids, batch.row_positions};
    if (takes_slice(exchange, context)) {
      const ShardRange slice = exchange.parallel.part_of(batch.token_count());
      arguments.coords = {batch.row_ids.slice(0, slice.begin, slice.end),
                          batch.row_positions.slice(0, slice.begin, slice.end)};
    }
  }
  return ResidualFunction::apply(branch, residual, &arguments);
}

}  // namespace

at::Tensor residual_add(const at::Tensor& branch, const at::Tensor& residual, const Context& context,
                        uint64_t site, const TensorExchange& exchange) {
  return add_residual(branch, residual, context, site, exchange, /*in_place=*/true);
}

at::Tensor residual_sum(const at::Tensor& branch, const at::Tensor& residual, const Context& context,
                        uint64_t site, const TensorExchange& exchange) {
  return add_residual(branch, residual, context, site, exchange, /*in_place=*/false);
}

}  // namespace stepforge
