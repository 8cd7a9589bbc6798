// SPDX-License-Identifier: Apache-2.0
// The bias of a linear layer: x[n, d] += bias[d]; backward grad_bias[d] = sum_n grad[n, d].
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// x: [N, D] fp32 or bf16, changed in place; bias: [D] of x's type or fp32. No autograd.
void bias_forward(const at::Tensor& x, const at::Tensor& bias);

/// grad: [N, D], the gradient of the result, which is that of x too; grad_bias: [D] fp32, written. The order of
/// the sum over tokens does not depend on the number of threads.
void bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias);

}  // namespace stepforge
