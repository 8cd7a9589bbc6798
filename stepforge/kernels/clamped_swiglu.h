// SPDX-License-Identifier: Apache-2.0
// The activation of the experts of gpt-oss, of rows that are sorted by expert (expert_rows.h), times the weight with which
// the token of a row takes the expert. Columns of gate and up alternate: x[2 f] and x[2 f + 1]. With gate = min(x[2 f],
// limit) and up = clamp(x[2 f + 1], -limit, limit):
//
//   out[row, f] = weights[slot of row] * (up + 1) * gate * sigmoid(alpha * gate)
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

struct ClampedSwiglu {
  double limit = 7.0;
  double alpha = 1.702;
};

/// gate_up: [R, 2F], out: [R, F], written, both of one type; weights: [N, k] fp32 (fp64 gate_up: fp64), R = N k. slots:
/// [R] int32. No autograd.
void clamped_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                            const ClampedSwiglu& activation, const at::Tensor& out);

/// grad_gate_up: [R, 2F], 0 where a limit holds, grad_weights: [N, k], out: [R, F], all written; out is the forward's
/// result, and may be the same memory as grad_out.
void clamped_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                             const at::Tensor& slots, const ClampedSwiglu& activation,
                             const at::Tensor& grad_gate_up, const at::Tensor& grad_weights,
                             const at::Tensor& out);

}  // namespace stepforge
