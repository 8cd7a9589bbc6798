// SPDX-License-Identifier: Apache-2.0
// The products of a linear layer and of its gradients. All tensors are contiguous; x, weight, out and their gradients are of one type,
// but the gradient of the weight is fp32. No autograd. No bit depends on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// out[n, o] = sum_k x[n, k] weight[o, k]. x: [N, K]; weight: [O, K]; out: [N, O], written.
void linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out);

/// grad_x[n, k] = sum_o grad_out[n, o] weight[o, k] + summand[n, k]. grad_x: [N, K], written; summand: the same, or undefined for 0;
/// it may be grad_x.
void linear_input_gradient(const at::Tensor& grad_out, const at::Tensor& weight, const at::Tensor& summand,
                           const at::Tensor& grad_x);

/// grad_weight[o, k] = sum_n grad_out[n, o] x[n, k]: [O, K] fp32 (fp64 if x is); `accumulate`: added to what it holds.
void linear_weight_gradient(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& grad_weight,
                            bool accumulate);

}  // namespace stepforge
