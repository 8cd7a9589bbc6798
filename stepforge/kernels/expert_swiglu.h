// SPDX-License-Identifier: Apache-2.0
// SwiGLU of rows that are sorted by expert (expert_rows.h), times the weight with which its token takes the expert. The
// weight goes in before the down projection, so that its gradient needs nothing but what is here:
//
//   out[row] = weights[slot of row] * silu(gate[row]) * up[row]
//
// Backward, with h = silu(gate) * up:
//   grad_weights[slot of row] = sum_f grad_out[row, f] * h[row, f]
//   grad_gate, grad_up        = those of swiglu.h, for the gradient weights[slot of row] * grad_out[row]
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// gate_up: [R, 2F], out: [R, F], written, both of one type; weights: [N, k] fp32 (fp64 gate_up: fp64), R = N k. slots:
/// [R] int32. No autograd.
void expert_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                           const at::Tensor& out);

/// grad_gate_up: [R, 2F], grad_weights: [N, k], out: [R, F], all written; out is the forward's result, and may be the same
/// memory as grad_out.
void expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                            const at::Tensor& slots, const at::Tensor& grad_gate_up,
                            const at::Tensor& grad_weights, const at::Tensor& out);

}  // namespace stepforge
