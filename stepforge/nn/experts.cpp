// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/gated_add.h"
#include "stepforge/kernels/grouped_product.h"
#include "stepforge/kernels/swiglu.h"
#include "stepforge/nn/expert_functions.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/wide_linear.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// [E, rows, columns] of a parameter [E rows, columns], or of its gradient.
at::Tensor by_expert(const at::Tensor& packed, const ExpertRows& rows) {
  return packed.view({static_cast<int64_t>(rows.offsets.size()) - 1, -1, packed.size(1)});
}

struct ExpertsArguments {
  Parameter* gate_up;
  Parameter* down;
  int64_t experts;
};

struct ExpertsFunction : torch::autograd::Function<ExpertsFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights,
                            const at::Tensor& indices, const at::Tensor& gate_up_weight,
                            const at::Tensor& down_weight, const ExpertsArguments* arguments) {
    const ExpertRows rows = sort_by_expert(indices, arguments->experts);
    const at::Tensor buffer = gather_rows(x, rows);  // what goes into the experts, then what comes out
    const at::Tensor gate_up = at::empty({rows.count(), 2 * down_weight.size(1)}, x.options());
    grouped_product(buffer, by_expert(gate_up_weight.detach(), rows), rows.offsets, gate_up);
    {
      const at::Tensor hidden = at::empty({rows.count(), down_weight.size(1)}, x.options());
      expert_swiglu_forward(gate_up, weights, rows.slots, hidden);
      grouped_product(hidden, by_expert(down_weight.detach(), rows), rows.offsets, buffer);
    }
    at::Tensor out = at::empty_like(x);
    combine_rows(buffer, rows, out);
    ctx->save_for_backward(
        {arguments->gate_up->trained() ? x : at::Tensor(), weights, gate_up, rows.slots, rows.rows});
    save_value(*ctx, "offsets", rows.offsets);
    save_pointer(*ctx, "gate_up", arguments->gate_up);
    save_pointer(*ctx, "down", arguments->down);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor x = saved[0].defined() ? saved[0].detach() : at::Tensor();
    const at::Tensor& weights = saved[1];
    const at::Tensor& gate_up = saved[2];
    const ExpertRows rows{saved_value<std::vector<int64_t>>(*ctx, "offsets"), saved[3], saved[4]};
    auto& gate_up_weight = *saved_pointer<Parameter>(*ctx, "gate_up");
    auto& down_weight = *saved_pointer<Parameter>(*ctx, "down");
    const at::Tensor gradient = gradients[0].contiguous();

    at::Tensor hidden = at::empty({rows.count(), down_weight.value().size(1)}, gate_up.options());
    grouped_input_gradient(gather_rows(gradient, rows), by_expert(down_weight.value().detach(), rows),
                           rows.offsets, hidden);
    const at::Tensor gate_up_gradient = at::empty_like(gate_up);
    const at::Tensor weights_gradient = at::empty_like(weights);
    // `hidden`: first its gradient, then what went into the down projection.
    expert_swiglu_backward(hidden, gate_up, weights, rows.slots, gate_up_gradient, weights_gradient, hidden);
    if (down_weight.trained()) add_products(down_weight, gradient, rows, hidden, /*gather_left=*/true);
    hidden.reset();
    if (gate_up_weight.trained())
      add_products(gate_up_weight, x, rows, gate_up_gradient, /*gather_left=*/false);
    at::Tensor x_gradient;
    if (ctx->needs_input_grad(0)) {
      const at::Tensor of_rows = at::empty({rows.count(), gradient.size(1)}, gradient.options());
      grouped_input_gradient(gate_up_gradient, by_expert(gate_up_weight.value().detach(), rows), rows.offsets,
                             of_rows);
      x_gradient = at::empty_like(gradient);
      combine_rows(of_rows, rows, x_gradient);
    }
    return {x_gradient, weights_gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  /// Contributes the products of `tokens`, whose rows are made when it is written, and `of_rows`: gradient^T input,
  /// where the gradient is that of tokens or the other one.
  static void add_products(Parameter& weight, const at::Tensor& tokens, const ExpertRows& rows,
                           const at::Tensor& of_rows, bool gather_left) {
    weight.write([tokens, rows, of_rows, gather_left](const at::Tensor& target, bool accumulate) {
      const at::Tensor made = gather_rows(tokens, rows);
      grouped_weight_gradient(gather_left ? made : of_rows, gather_left ? of_rows : made, rows.offsets,
                              by_expert(target, rows), accumulate);
    });
  }
};

struct GateFunction : torch::autograd::Function<GateFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            Parameter* parameter) {
    ctx->save_for_backward({parameter->trained() ? x : at::Tensor()});
    save_pointer(*ctx, "parameter", parameter);
    return wide_product(x, weight);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    auto& parameter = *saved_pointer<Parameter>(*ctx, "parameter");
    if (parameter.trained()) add_wide_product(parameter, gradients[0], ctx->get_saved_variables()[0]);
    at::Tensor x_gradient;
    if (ctx->needs_input_grad(0)) x_gradient = wide_input_gradient(gradients[0], parameter.value());
    return {x_gradient, at::Tensor(), at::Tensor()};
  }
};

struct GatedAddFunction : torch::autograd::Function<GatedAddFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& routed, const at::Tensor& shared,
                            const at::Tensor& gate) {
    at::Tensor out = at::empty_like(routed);
    gated_add_forward(routed, shared, gate.squeeze(1), out);
    ctx->save_for_backward({shared, gate});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor gradient = gradients[0].contiguous();
    at::Tensor shared_gradient = at::empty_like(saved[0]);
    at::Tensor gate_gradient = at::empty_like(saved[1]);
    gated_add_backward(gradient, saved[0], saved[1].detach().squeeze(1), shared_gradient,
                       gate_gradient.squeeze(1));
    return {gradient, shared_gradient, gate_gradient};
  }
};

}  // namespace

at::Tensor run_experts(const at::Tensor& x, const RoutedTokens& routed, int64_t experts, Parameter& gate_up,
                       Parameter& down) {
  const ExpertsArguments arguments{&gate_up, &down, experts};
  return ExpertsFunction::apply(x, routed.weights, routed.indices, gate_up.value(), down.value(), &arguments);
}

at::Tensor gate_of(const at::Tensor& x, Parameter& weight) {
  return GateFunction::apply(x, weight.value(), &weight);
}

at::Tensor add_gated(const at::Tensor& routed, const at::Tensor& shared, const at::Tensor& gate) {
  return GatedAddFunction::apply(routed, shared, gate);
}

}  // namespace stepforge
