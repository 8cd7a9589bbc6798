// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/swiglu.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/layers.h"

namespace stepforge {

namespace {

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    swiglu_forward(gate_up, out);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    at::Tensor gradient = at::empty_like(gate_up);
    swiglu_backward(gradients[0], gate_up, gradient);
    return {gradient};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  return SwigluFunction::apply(gate_up);
}

MlpLayer::MlpLayer(const ParameterLookup& parameters, const std::string& prefix, double eps, int64_t layer,
                   TensorExchange tensor)
    : norm_(parameters(prefix + ".norm")),
      gate_up_(parameters(prefix + ".gate_up")),
      down_(parameters(prefix + ".down")),
      eps_(eps),
      layer_(layer),
      tensor_(std::move(tensor)) {}

at::Tensor MlpLayer::forward(const at::Tensor& x, const Context& context) {
  const bool slice = takes_slice(tensor_, context);
  auto [normed, residual] = pre_norm(x, norm_, eps_, slice ? &tensor_ : nullptr);
  const at::Tensor gate_up = enter_linear(normed, gate_up_, tensor_, context);
  const at::Tensor branch = leave_linear(swiglu(gate_up), down_, tensor_, context);
  // A layer has two dropouts: that of attention, then this one.
  return residual_add(branch, residual, context, static_cast<uint64_t>(2 * layer_ + 1), tensor_);
}

}  // namespace stepforge
