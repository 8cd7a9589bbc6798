// SPDX-License-Identifier: Apache-2.0
// SwiGLU of a packed projection: out = a(gate) * up, with gate = gate_up[:, :F], up = gate_up[:, F:] and
// a(g) = g * s(g), where s = sigmoid(g) for silu, and for gelu_tanh (GeGLU; Shazeer, "GLU Variants Improve
// Transformer", 2020)
//   s = (1 + tanh(u)) / 2,   u = sqrt(2 / pi) (g + 0.044715 g^3)
//
// Backward:
//   grad_up   = grad_out * a(gate)
//   grad_gate = grad_out * up * a'(gate),   a'(g) = s + g s'
//   s' = s (1 - s) for silu, 2 s (1 - s) du/dg for gelu_tanh
#pragma once

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/layer_traits.h"

namespace stepforge {

/// gate_up: [N, 2F]; out: [N, F]; both fp32 or both bf16. No autograd.
void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out,
                    Activation activation = Activation::silu);

/// grad_gate_up: [N, 2F], written; may be the same memory as gate_up.
void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up,
                     Activation activation = Activation::silu);

}  // namespace stepforge
