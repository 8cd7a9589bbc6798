// SPDX-License-Identifier: Apache-2.0
// The product of a linear layer: out[n, o] = sum_k x[n, k] weight[o, k].
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// x: [N, K]; weight: [O, K]; out: [N, O], written. All contiguous and of one type. No autograd. The bits do not depend on the number
/// of threads.
void linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out);

}  // namespace stepforge
