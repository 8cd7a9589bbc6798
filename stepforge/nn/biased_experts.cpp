// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/biased_experts.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/expert_bias.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/grouped_product.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/wide_linear.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BiasedArguments {
  BiasedExperts experts;
  ClampedSwiglu activation;
};

struct BiasedExpertsFunction : torch::autograd::Function<BiasedExpertsFunction> {
  // The weights of an expert are [in, out], so a forward product is the gradient of the input by [out, in], and the
  // other way round.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights,
                            const at::Tensor& indices, const at::Tensor& gate_up_weight,
                            const at::Tensor& down_weight, const BiasedArguments* arguments) {
    const BiasedExperts& experts = arguments->experts;
    const ExpertRows rows = sort_by_expert(indices, down_weight.size(0));
    const at::Tensor buffer = gather_rows(x, rows);  // what goes into the experts, then what comes out
    const at::Tensor gate_up = at::empty({rows.count(), gate_up_weight.size(2)}, x.options());
    grouped_input_gradient(buffer, gate_up_weight.detach(), rows.offsets, gate_up);
    add_expert_bias(gate_up, rows.offsets, widen(experts.gate_up_bias.value()), {});
    {
      const at::Tensor hidden = at::empty({rows.count(), down_weight.size(1)}, x.options());
      clamped_swiglu_forward(gate_up, weights, rows.slots, arguments->activation, hidden);
      grouped_input_gradient(hidden, down_weight.detach(), rows.offsets, buffer);
    }
    add_expert_bias(biased_columns(buffer, experts), rows.offsets, widen(experts.down_bias.value()),
                    {weights, rows.slots});
    at::Tensor out = at::empty_like(x);
    combine_rows(buffer, rows, out);
    ctx->save_for_backward(
        {experts.gate_up.trained() ? x : at::Tensor(), weights, gate_up, rows.slots, rows.rows});
    save_value(*ctx, "offsets", rows.offsets);
    save_value(*ctx, "arguments", *arguments);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::NoGradGuard no_grad;
    const auto saved = ctx->get_saved_variables();
    const auto& arguments = saved_value<BiasedArguments>(*ctx, "arguments");
    const BiasedExperts& experts = arguments.experts;
    const at::Tensor x = saved[0].defined() ? saved[0].detach() : at::Tensor();
    const at::Tensor& weights = saved[1];
    const at::Tensor& gate_up = saved[2];
    const ExpertRows rows{saved_value<std::vector<int64_t>>(*ctx, "offsets"), saved[3], saved[4]};
    const at::Tensor gradient = gradients[0].contiguous();

    at::Tensor hidden = at::empty({rows.count(), gate_up.size(1) / 2}, gate_up.options());
    const at::Tensor gate_up_gradient = at::empty_like(gate_up);
    const at::Tensor weights_gradient = at::empty_like(weights);
    {
      const at::Tensor of_rows = gather_rows(gradient, rows);
      grouped_product(of_rows, experts.down.value().detach(), rows.offsets, hidden);
      // `hidden`: first its gradient, then what went into the down projection.
      clamped_swiglu_backward(hidden, gate_up, weights, rows.slots, arguments.activation, gate_up_gradient,
                              weights_gradient, hidden);
      const at::Tensor biased = biased_columns(of_rows, experts);
      add_factor_gradients(biased, rows.offsets, widen(experts.down_bias.value()), rows.slots,
                           weights_gradient);
      add_bias_gradient(experts.down_bias, biased, rows, {weights, rows.slots});
    }
    add_bias_gradient(experts.gate_up_bias, gate_up_gradient, rows, {});
    if (experts.down.trained()) {
      experts.down.write([gradient, rows, hidden](const at::Tensor& target, bool accumulate) {
        grouped_weight_gradient(hidden, gather_rows(gradient, rows), rows.offsets, target, accumulate);
      });
    }
    hidden.reset();
    if (experts.gate_up.trained()) {
      experts.gate_up.write([x, rows, gate_up_gradient](const at::Tensor& target, bool accumulate) {
        grouped_weight_gradient(gather_rows(x, rows), gate_up_gradient, rows.offsets, target, accumulate);
      });
    }
    at::Tensor x_gradient;
    if (ctx->needs_input_grad(0)) {
      const at::Tensor of_rows = at::empty({rows.count(), gradient.size(1)}, gradient.options());
      grouped_product(gate_up_gradient, experts.gate_up.value().detach(), rows.offsets, of_rows);
      x_gradient = at::empty_like(gradient);
      combine_rows(of_rows, rows, x_gradient);
    }
    return {x_gradient, weights_gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  /// Of results, or their gradients, those to which this rank adds a bias.
  static at::Tensor biased_columns(const at::Tensor& results, const BiasedExperts& experts) {
    const TensorSlice held = experts.down_bias.spec().slice_of(0);
    return results.narrow(1, held.offsets.at(1), held.sizes.at(1));
  }

  static void add_bias_gradient(Parameter& bias, const at::Tensor& of_rows, const ExpertRows& rows,
                                const RowFactors& factors) {
    if (!bias.trained()) return;
    const at::Tensor sums = at::empty(bias.value().sizes(), of_rows.options().dtype(compute_type(of_rows)));
    expert_bias_gradient(of_rows, rows.offsets, factors, sums);
    bias.add_gradient(sums);
  }
};

}  // namespace

at::Tensor run_biased_experts(const at::Tensor& x, const RoutedTokens& routed, const BiasedExperts& experts,
                              const ClampedSwiglu& activation) {
  const BiasedArguments arguments{experts, activation};
  return BiasedExpertsFunction::apply(x, routed.weights, routed.indices, experts.gate_up.value(),
                                      experts.down.value(), &arguments);
}

ExpertFunction biased_experts(const ParameterLookup& parameters, const std::string& prefix) {
  const BiasedExperts experts{parameters(prefix + ".expert_gate_up"),
                              parameters(prefix + ".expert_gate_up_bias"),
                              parameters(prefix + ".expert_down"), parameters(prefix + ".expert_down_bias")};
  return [experts](const at::Tensor& tokens, const RoutedTokens& routed) {
    return run_biased_experts(tokens, routed, experts, ClampedSwiglu());
  };
}

}  // namespace stepforge
