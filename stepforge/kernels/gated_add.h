// SPDX-License-Identifier: Apache-2.0
// The sum of two branches, of which the second has a gate for each token:
//
//   out[n] = x[n] + sigmoid(gate[n]) * y[n]
//
// Backward, with s = sigmoid(gate): grad_x = grad_out, grad_y = s * grad_out, grad_gate = s (1 - s) sum_d grad_out * y.
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// x, y, out: [N, D] of one type; out is written and may be the memory of x. gate: [N] fp32 (fp64 x: fp64). No autograd.
void gated_add_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                       const at::Tensor& out);

/// grad_y: [N, D], grad_gate: [N], both written.
void gated_add_backward(const at::Tensor& grad_out, const at::Tensor& y, const at::Tensor& gate,
                        const at::Tensor& grad_y, const at::Tensor& grad_gate);

}  // namespace stepforge
