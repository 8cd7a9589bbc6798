// SPDX-License-Identifier: Apache-2.0
// Gated activations of a packed projection: out = weight * a(gate) * up, with gate = gate_up[:, :F], up = gate_up[:, F:]
// and a(g) = g * s(g), where s = sigmoid(g) for silu (SwiGLU), and for gelu_tanh (GeGLU; Shazeer, "GLU Variants Improve
// Transformer", 2020)
//   s = (1 + tanh(u)) / 2,   u = sqrt(2 / pi) (g + 0.044715 g^3)
//
// Rows that are sorted by expert (expert_rows.h) have as weight that with which the token takes the expert, weights[slot of
// row]; others have 1. It goes in before the down projection, so that its gradient needs nothing but what is here.
//
// The experts of gpt-oss have columns of gate and up in turn, x[2 f] and x[2 f + 1], and limits: gate = min(x[2 f], limit),
// up = clamp(x[2 f + 1], -limit, limit) + 1, s = sigmoid(alpha * gate).
//
// Backward, with h = a(gate) * up and grad = weight * grad_out:
//   grad_weights[slot of row] = sum_f grad_out[row, f] * h[row, f]
//   grad_up   = grad * a(gate)             (0 where a limit holds)
//   grad_gate = grad * up * a'(gate),   a'(g) = s + g s'
//   s' = s (1 - s) for silu, 2 s (1 - s) du/dg for gelu_tanh, alpha s (1 - s) with limits
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/layer_traits.h"

namespace stepforge {

/// gate_up: [N, 2F]; out: [N, F]; both fp32 or both bf16. No autograd.
void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out,
                    Activation activation = Activation::silu);

/// grad_gate_up: [N, 2F], written; may be the same memory as gate_up.
void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up,
                     Activation activation = Activation::silu);

/// gate_up: [R, 2F], out: [R, F], written, both of one type; weights: [N, k] fp32 (fp64 gate_up: fp64), R = N k. slots:
/// [R] int32. No autograd.
void expert_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                           const at::Tensor& out);

/// grad_gate_up: [R, 2F], grad_weights: [N, k], both written.
void expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                            const at::Tensor& slots, const at::Tensor& grad_gate_up,
                            const at::Tensor& grad_weights);

/// The same with limits.
void clamped_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                            const ClampedSwiglu& activation, const at::Tensor& out);
void clamped_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                             const at::Tensor& slots, const ClampedSwiglu& activation,
                             const at::Tensor& grad_gate_up, const at::Tensor& grad_weights);

/// What these have in common, as implementations get it (kernel_table.h).
struct GatedRows {
  Activation activation = Activation::silu;   ///< of rows without weights
  std::optional<ClampedSwiglu> clamped = {};  ///< of rows with weights
  at::Tensor weights = {};                    ///< undefined if all are 1
  at::Tensor slots = {};
};

}  // namespace stepforge
