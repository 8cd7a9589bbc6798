// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_experts.h"

#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"
#include "stepforge/prove/exact_rounding.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kExpertsPerToken = 2;

/// The experts of each token, [N, 2] int32.
at::Tensor choice(const at::Tensor& logits) {
  // Distinct numbers, so that the order does not depend on an algorithm.
  at::Tensor keys = logits.detach().to(at::kLong) * logits.size(1);
  const at::Tensor indices = at::empty({logits.size(0), kExpertsPerToken}, logits.options().dtype(at::kInt));
  for (int64_t expert = 0; expert < logits.size(1); ++expert) keys.select(1, expert).sub_(expert);
  for (int64_t j = 0; j < kExpertsPerToken; ++j) {
    const at::Tensor largest = keys.argmax(1, true);
    indices.narrow(1, j, 1).copy_(largest);
    keys.scatter_(1, largest, -1000 * logits.size(1));
  }
  return indices;
}

/// Of each row the product with the matrix of its expert: [R, out] of rows [R, in] and a weight [E out, in].
struct ProductByExpert : torch::autograd::Function<ProductByExpert> {
  static at::Tensor matrix(const at::Tensor& weight, int64_t expert, int64_t experts) {
    const int64_t rows = weight.size(0) / experts;
    return weight.narrow(0, expert * rows, rows);
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& indices,
                            const at::Tensor& weight, Parameter* parameter, int64_t experts) {
    ctx->save_for_backward({rows, indices});
    save_pointer(*ctx, "parameter", parameter);
    ctx->saved_data["experts"] = experts;
    at::Tensor out = at::zeros({rows.size(0), weight.size(0) / experts}, rows.options());
    for (int64_t expert = 0; expert < experts; ++expert) {
      const at::Tensor own = indices.eq(expert).nonzero().view({-1});
      out.index_copy_(0, own, at::mm(rows.index_select(0, own), matrix(weight, expert, experts).t()));
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    const auto saved = ctx->get_saved_variables();
    auto& parameter = *saved_pointer<Parameter>(*ctx, "parameter");
    const int64_t experts = ctx->saved_data.at("experts").toInt();
    const at::Tensor& rows = saved[0];
    const at::Tensor weight = parameter.value().detach();
    const at::Tensor weight_gradient = at::zeros(weight.sizes(), weight.options().dtype(at::kFloat));
    at::Tensor rows_gradient = at::zeros(rows.sizes(), rows.options());
    for (int64_t expert = 0; expert < experts; ++expert) {
      const at::Tensor own = saved[1].eq(expert).nonzero().view({-1});
      const at::Tensor gradient = gradients[0].index_select(0, own);
      matrix(weight_gradient, expert, experts).copy_(at::mm(gradient.t(), rows.index_select(0, own)));
      rows_gradient.index_copy_(0, own, at::mm(gradient, matrix(weight, expert, experts)));
    }
    if (parameter.trained()) parameter.add_gradient(weight_gradient);
    return {rows_gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RoutedTokens exact_route(const at::Tensor& x, Parameter& router) {
  const at::Tensor logits = round_to_exact(linear(x, router));
  at::Tensor indices = choice(logits);
  at::Tensor weights = logits.gather(1, indices.to(at::kLong));
  return {std::move(weights), std::move(indices)};
}

at::Tensor exact_results(const at::Tensor& rows, const RoutedTokens& routed, Parameter& up, Parameter& down) {
  const int64_t experts = down.value().size(0) / rows.size(1);
  const auto product = [&](const at::Tensor& in, Parameter& weight) {
    return ProductByExpert::apply(in, routed.indices.view({-1}), weight.value(), &weight, experts);
  };
  return product(round_to_exact(product(rows, up)), down) * routed.weights;
}

at::Tensor exact_experts(const at::Tensor& x, Parameter& router, Parameter& up, Parameter& down) {
  const RoutedTokens routed = exact_route(x, router);
  const at::Tensor rows = x.repeat_interleave(kExpertsPerToken, 0);
  const at::Tensor results =
      exact_results(rows, {routed.weights.view({-1, 1}), routed.indices.view({-1, 1})}, up, down);
  return results.view({x.size(0), kExpertsPerToken, -1}).sum(1);
}

}  // namespace stepforge
