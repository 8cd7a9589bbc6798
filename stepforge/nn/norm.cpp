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

struct ForkFunction : torch::autograd::Function<ForkFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    ctx->set_materialize_grads(false);
    return {x.variable_data(), x.variable_data()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    // In place of the branch's gradient, which nothing else uses.
    return {gradients[0].add_(gradients[1])};
  }
};

/// What a norm keeps for its backward, besides tensors.
struct NormArguments {
  Parameter* parameter = nullptr;
  NormConstants constants;
  const TensorExchange* summed = nullptr;
};

struct PostNormFunction : torch::autograd::Function<PostNormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, const NormArguments* arguments) {
    at::Tensor normed = at::empty_like(x);
    at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    rms_norm_forward(x, weight, arguments->constants.eps, normed, rstd, arguments->constants.offset);
    ctx->save_for_backward({x, rstd});
    save_value(*ctx, "arguments", *arguments);
    return normed;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& arguments = saved_value<NormArguments>(*ctx, "arguments");
    NormGradient weight_gradient(*arguments.parameter, arguments.summed);
    // Not in place: the residual path has the same gradient.
    at::Tensor x_gradient = at::empty_like(saved[0]);
    rms_norm_backward(gradients[0], saved[0], arguments.parameter->value(), saved[1], at::Tensor(),
                      x_gradient, weight_gradient.target(), arguments.constants.offset);
    weight_gradient.finish();
    return {x_gradient, at::Tensor(), at::Tensor()};
  }
};

struct PreNormFunction : torch::autograd::Function<PreNormFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                                const at::Tensor& weight, const NormArguments* arguments) {
    at::Tensor normed = at::empty_like(x);
    at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    rms_norm_forward(x, weight, arguments->constants.eps, normed, rstd, arguments->constants.offset);
    ctx->save_for_backward({x, rstd});
    ctx->set_materialize_grads(false);
    save_value(*ctx, "arguments", *arguments);
    // The residual path: a tensor that shares x's memory.
    return {normed, x.variable_data()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& arguments = saved_value<NormArguments>(*ctx, "arguments");
    NormGradient weight_gradient(*arguments.parameter, arguments.summed);
    // In place of the normed branch's gradient, which nothing else uses.
    const at::Tensor& x_gradient = gradients[0];
    rms_norm_backward(gradients[0], saved[0], arguments.parameter->value(), saved[1], gradients[1],
                      x_gradient, weight_gradient.target(), arguments.constants.offset);
    weight_gradient.finish();
    return {x_gradient, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> start_residual(const at::Tensor& x) {
  auto results = ForkFunction::apply(x);
  return {results[0], results[1]};
}

at::Tensor post_norm(const at::Tensor& x, Parameter& weight, const NormConstants& constants,
                     const TensorExchange* summed) {
  const NormArguments arguments{&weight, constants, summed};
  return PostNormFunction::apply(x, weight.value(), &arguments);
}

std::pair<at::Tensor, at::Tensor> pre_norm(const at::Tensor& x, Parameter& weight,
                                           const NormConstants& constants, const TensorExchange* summed) {
  const NormArguments arguments{&weight, constants, summed};
  auto results = PreNormFunction::apply(x, weight.value(), &arguments);
  return {results[0], results[1]};
}

}  // namespace stepforge
