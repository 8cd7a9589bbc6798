// SPDX-License-Identifier: Apache-2.0
// Arithmetic on scalars: the numbers of a step that depend on its data, such as the norm of its gradients. A
// scalar is a fp64 tensor without dimensions on the compute device. One operation writes it, a later one
// reads it when it runs, and the host sees it only after the step (train/step_scalars.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge {

/// weight = 1 / count, or 0 if count is 0.
void reciprocal_or_zero(const at::Tensor& count, const at::Tensor& weight);

/// mean = the sum of `values` (fp64 [n], in order) / count, or 0 if count is 0.
void mean_in_order(const at::Tensor& values, const at::Tensor& count, const at::Tensor& mean);

/// coefficient = the factor by which gradients are multiplied to limit `norm` to `max_norm`, as in
/// torch.nn.utils.clip_grad_norm_. 1 if max_norm is 0, which means no clipping, and for a norm that is NaN.
void clip_coefficient(const at::Tensor& norm, double max_norm, const at::Tensor& coefficient);

/// flag = 1 if both are finite, else 0.
void flag_if_finite(const at::Tensor& first, const at::Tensor& second, const at::Tensor& flag);

}  // namespace stepforge
