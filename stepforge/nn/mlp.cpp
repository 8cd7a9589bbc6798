// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/kernels/swiglu.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

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

}  // namespace stepforge
