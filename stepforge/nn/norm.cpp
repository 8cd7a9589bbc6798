// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/rms_norm.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/norm_gradient.h"

namespace stepforge {

namespace {

struct PreNormFunction : torch::autograd::Function<PreNormFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                                const at::Tensor& weight, double eps, Parameter* parameter,
                                                const TensorExchange* summed) {
    at::Tensor normed = at::empty_like(x);
    at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    rms_norm_forward(x, weight, eps, normed, rstd);
    ctx->save_for_backward({x, rstd});
    ctx->set_materialize_grads(false);
    save_pointer(*ctx, "parameter", parameter);
    save_pointer(*ctx, "summed", summed);
    // The residual path: a tensor that shares x's memory.
    return {normed, x.variable_data()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    auto* parameter = saved_pointer<Parameter>(*ctx, "parameter");
    NormGradient weight_gradient(*parameter, saved_pointer<TensorExchange>(*ctx, "summed"));
    // In place of the normed branch's gradient, which nothing else uses.
    const at::Tensor& x_gradient = gradients[0];
    rms_norm_backward(gradients[0], saved[0], parameter->value(), saved[1], gradients[1], x_gradient,
                      weight_gradient.target());
    weight_gradient.finish();
    return {x_gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> pre_norm(const at::Tensor& x, Parameter& weight, double eps,
                                           const TensorExchange* summed) {
  auto results = PreNormFunction::apply(x, weight.value(), eps, &weight, summed);
  return {results[0], results[1]};
}

}  // namespace stepforge
