// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

namespace {

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  // The weight is an argument so that a graph is built even if x needs no gradient.
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, Parameter* parameter) {
    if (parameter->trained()) ctx->save_for_backward({x});
    save_pointer(*ctx, "parameter", parameter);
    return at::mm(x, weight.t());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    auto* parameter = saved_pointer<Parameter>(*ctx, "parameter");
    const at::Tensor& gradient = gradients[0];
    const at::NoGradGuard no_grad;
    if (parameter->trained()) parameter->add_product(gradient, ctx->get_saved_variables()[0]);
    at::Tensor input_gradient;
    if (ctx->needs_input_grad(0)) input_gradient = at::mm(gradient, parameter->value());
    return {input_gradient, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, Parameter& weight) {
  return LinearFunction::apply(x, weight.value(), &weight);
}

}  // namespace stepforge
