// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation over the last dimension.
//
//   rstd[n]  = 1 / sqrt(mean_d x[n,d]^2 + eps)
//   out[n,d] = x[n,d] * rstd[n] * (offset + weight[d])
//
// The offset is 0, or 1 for weights that start at 0 (Gemma). Backward, with g = grad_out * (offset + weight) and
// xhat = x * rstd:
//   grad_x         = rstd * (g - xhat * mean_d(g * xhat)) (+ residual_grad)
//   grad_weight[d] = sum_n grad_out[n,d] * xhat[n,d]
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// x, out: [N, D] fp32 or bf16; weight: [D] of x's type or fp32; rstd: [N] fp32 (fp64 x: fp64). No autograd.
void rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out,
                      const at::Tensor& rstd, double offset = 0.0);

/// grad_x: [N, D] of x's type, written; may be the same memory as grad_out or residual_grad. residual_grad:
/// [N, D], added to grad_x; undefined when there is none. grad_weight: [D] fp32, written.
/// The order of the sum over tokens does not depend on the number of threads.
void rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor& residual_grad, const at::Tensor& grad_x,
                       const at::Tensor& grad_weight, double offset = 0.0);

/// offset + weight in `type`.
at::Tensor norm_scale(const at::Tensor& weight, double offset, at::ScalarType type);

}  // namespace stepforge
