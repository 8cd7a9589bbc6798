// SPDX-License-Identifier: Apache-2.0
// SwiGLU of a packed projection: out = silu(gate) * up, with gate = gate_up[:, :F], up = gate_up[:, F:] and
// silu(g) = g * sigmoid(g).
//
// Backward:
//   grad_up   = grad_out * silu(gate)
//   grad_gate = grad_out * up * sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// gate_up: [N, 2F]; out: [N, F]; both fp32 or both bf16. No autograd.
void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out);

/// grad_gate_up: [N, 2F], written; may be the same memory as gate_up.
void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up);

void swiglu_forward_reference(const at::Tensor& gate_up, const at::Tensor& out);
void swiglu_backward_reference(const at::Tensor& grad_out, const at::Tensor& gate_up,
                               const at::Tensor& grad_gate_up);

}  // namespace stepforge
