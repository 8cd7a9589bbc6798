// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/scalars.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

void reciprocal_or_zero(const at::Tensor& count, const at::Tensor& weight) {
  check_scalar(count, "reciprocal_or_zero count");
  check_scalar(weight, "reciprocal_or_zero weight");
  pick(&KernelTable::reciprocal_or_zero, weight)(count, weight);
}

void mean_in_order(const at::Tensor& values, const at::Tensor& count, const at::Tensor& mean) {
  check_tensor(values, "mean_in_order values", {values.numel()}, at::kDouble);
  check_scalar(count, "mean_in_order count");
  check_scalar(mean, "mean_in_order mean");
  pick(&KernelTable::mean_in_order, mean)(values, count, mean);
}

void clip_coefficient(const at::Tensor& norm, double max_norm, const at::Tensor& coefficient) {
  check_scalar(norm, "clip_coefficient norm");
  check_scalar(coefficient, "clip_coefficient coefficient");
  pick(&KernelTable::clip_coefficient, norm)(norm, max_norm, coefficient);
}

void flag_if_finite(const at::Tensor& first, const at::Tensor& second, const at::Tensor& flag) {
  check_scalar(first, "flag_if_finite first");
  check_scalar(second, "flag_if_finite second");
  check_scalar(flag, "flag_if_finite flag");
  pick(&KernelTable::flag_if_finite, flag)(first, second, flag);
}

void reference::reciprocal_or_zero(const at::Tensor& count, const at::Tensor& weight) {
  weight.copy_(at::where(count.gt(0.0), 1.0 / count, 0.0));
}

void reference::mean_in_order(const at::Tensor& values, const at::Tensor& count, const at::Tensor& mean) {
  mean.copy_(at::where(count.gt(0.0), values.sum() / count, 0.0));
}

void reference::clip_coefficient(const at::Tensor& norm, double max_norm, const at::Tensor& coefficient) {
  const at::Tensor ratio = max_norm / (norm + 1e-6);
  coefficient.copy_(max_norm > 0.0 ? at::where(ratio.lt(1.0), ratio, 1.0) : at::ones_like(norm));
}

void reference::flag_if_finite(const at::Tensor& first, const at::Tensor& second, const at::Tensor& flag) {
  flag.copy_(at::isfinite(first).logical_and(at::isfinite(second)));
}

}  // namespace stepforge
