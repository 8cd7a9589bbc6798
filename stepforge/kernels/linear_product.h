// SPDX-License-Identifier: Apache-2.0
// The product of a linear layer: out[n, o] = sum_k x[n, k] weight[o, k].
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// Products of at most this many rows take the time of reading the weight: they have a kernel. BLAS would pack it first.
inline constexpr int64_t kFewRows = 8;

/// x: [N, K]; weight: [O, K]; out: [N, O], written. All contiguous and of one type. No autograd. The bits do not depend on the number
/// of threads.
void linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out);

/// The same of 1 to kFewRows rows.
void few_rows_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out);

}  // namespace stepforge
