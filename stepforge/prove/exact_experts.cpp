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

/// [out, in], of a weight [E out, in], or [E, in, out] as those of all experts are in one tensor.
at::Tensor matrix_of(const at::Tensor& weight, int64_t expert, int64_t experts) {
  if (weight.dim() == 3) return weight.select(0, expert).t();
  const int64_t rows = weight.size(0) / experts;
  return weight.narrow(0, expert * rows, rows);
}

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

/// Of each row the product with the matrix of its expert: [R, out] of rows [R, in].
struct ProductByExpert : torch::autograd::Function<ProductByExpert> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& indices,
                            const at::Tensor& weight, Parameter* parameter, int64_t experts) {
    ctx->save_for_backward({rows, indices});
    save_pointer(*ctx, "parameter", parameter);
    ctx->saved_data["experts"] = experts;
    at::Tensor out = at::zeros({rows.size(0), matrix_of(weight, 0, experts).size(0)}, rows.options());
    for (int64_t expert = 0; expert < experts; ++expert) {
      const at::Tensor own = indices.eq(expert).nonzero().view({-1});
      out.index_copy_(0, own, at::mm(rows.index_select(0, own), matrix_of(weight, expert, experts).t()));
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
      matrix_of(weight_gradient, expert, experts).copy_(at::mm(gradient.t(), rows.index_select(0, own)));
      rows_gradient.index_copy_(0, own, at::mm(gradient, matrix_of(weight, expert, experts)));
    }
    if (parameter.trained()) parameter.add_gradient(weight_gradient);
    return {rows_gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// rows [R, W] plus the bias of the expert of each, in the columns from `first` on.
struct AddBiasByExpert : torch::autograd::Function<AddBiasByExpert> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& indices,
                            const at::Tensor& bias, Parameter* parameter, int64_t first) {
    ctx->save_for_backward({indices});
    save_pointer(*ctx, "parameter", parameter);
    ctx->saved_data["first"] = first;
    at::Tensor out = rows.clone();
    out.narrow(1, first, bias.size(1)).add_(bias.index_select(0, indices));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    auto& parameter = *saved_pointer<Parameter>(*ctx, "parameter");
    const at::Tensor sums = at::zeros(parameter.value().sizes(), gradients[0].options());
    const int64_t first = ctx->saved_data.at("first").toInt();
    sums.index_add_(0, ctx->get_saved_variables()[0], gradients[0].narrow(1, first, sums.size(1)));
    if (parameter.trained()) parameter.add_gradient(sums);
    return {gradients[0], at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// The parameters of the experts that this rank has. Biases are null if it has the matrices of each expert by themselves.
struct ExactExperts {
  Parameter* up;
  Parameter* up_bias;
  Parameter* down;
  Parameter* down_bias;
};

/// Of rows [R, D] the results of their experts, without weights.
at::Tensor results_of(const at::Tensor& rows, const at::Tensor& indices, const ExactExperts& experts) {
  const bool stacked = experts.down_bias != nullptr;
  const int64_t held = experts.down->value().size(0) / (stacked ? 1 : rows.size(1));
  const auto layer = [&](const at::Tensor& in, Parameter& weight, Parameter* bias, int64_t first) {
    at::Tensor sums = ProductByExpert::apply(in, indices, weight.value(), &weight, held);
    return bias == nullptr ? sums : AddBiasByExpert::apply(sums, indices, bias->value(), bias, first);
  };
  const at::Tensor up = layer(rows, *experts.up, experts.up_bias, 0);
  // Columns of gate and up alternate if all are in one tensor: here their sum is what goes on.
  const at::Tensor hidden = stacked ? up.view({rows.size(0), up.size(1) / 2, 2}).sum(2) : up;
  // A part of an expert adds its columns of the bias.
  const int64_t first = stacked ? experts.down_bias->spec().slice_of(0).offsets.at(1) : 0;
  return layer(round_to_exact(hidden), *experts.down, experts.down_bias, first);
}

}  // namespace

RoutedTokens exact_route(const at::Tensor& x, Parameter& router) {
  const at::Tensor logits = round_to_exact(linear(x, router));
  at::Tensor indices = choice(logits);
  at::Tensor weights = logits.gather(1, indices.to(at::kLong));
  return {std::move(weights), std::move(indices)};
}

ExpertFunction exact_experts(const ParameterLookup& parameters, const std::string& name, bool biased) {
  const auto bias = [&](const char* of) { return biased ? &parameters(name + of) : nullptr; };
  const ExactExperts experts{&parameters(name + ".expert_gate_up"), bias(".expert_gate_up_bias"),
                             &parameters(name + ".expert_down"), bias(".expert_down_bias")};
  return [experts](const at::Tensor& tokens, const RoutedTokens& routed) {
    const int64_t chosen = routed.indices.size(1);
    const at::Tensor results =
        results_of(tokens.repeat_interleave(chosen, 0), routed.indices.view({-1}), experts);
    return (results * routed.weights.view({-1, 1})).view({tokens.size(0), chosen, tokens.size(1)}).sum(1);
  };
}

}  // namespace stepforge
