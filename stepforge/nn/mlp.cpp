// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/swiglu.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/layers.h"

namespace stepforge {

namespace {

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& gate_up,
                            Activation activation) {
    ctx->save_for_backward({gate_up});
    save_value(*ctx, "activation", activation);
    at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    swiglu_forward(gate_up, out, activation);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    at::Tensor gradient = at::empty_like(gate_up);
    swiglu_backward(gradients[0], gate_up, gradient, saved_value<Activation>(*ctx, "activation"));
    return {gradient, at::Tensor()};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up, Activation activation) {
  return SwigluFunction::apply(gate_up, activation);
}

// A layer has two dropouts: that of attention, then this one.
MlpLayer::MlpLayer(const ParameterLookup& parameters, const std::string& prefix, const LayerTraits& traits,
                   double eps, int64_t layer, TensorExchange tensor)
    : branch_(parameters, prefix, traits, eps, static_cast<uint64_t>(2 * layer + 1)),
      gate_up_(parameters(prefix + ".gate_up")),
      down_(parameters(prefix + ".down")),
      activation_(traits.activation),
      tensor_(std::move(tensor)) {}

at::Tensor MlpLayer::forward(const at::Tensor& x, const Context& context) {
  const auto [input, residual] = branch_.enter(x, tensor_, context);
  const at::Tensor gate_up = enter_linear(input, gate_up_, tensor_, context);
  return branch_.leave(leave_linear(swiglu(gate_up, activation_), down_, tensor_, context), residual, tensor_,
                       context);
}

}  // namespace stepforge
