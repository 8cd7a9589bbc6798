// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/scalars.h"

#include <algorithm>
#include <cmath>

#include "stepforge/kernels/cpu/scalar_memory.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {

void reciprocal_or_zero(const at::Tensor& count, const at::Tensor& weight) {
  write(weight, read(count) > 0.0 ? 1.0 / read(count) : 0.0);
}

void mean_in_order(const at::Tensor& values, const at::Tensor& count, const at::Tensor& mean) {
  const double divisor = read(count);
  sum_in_order(values, mean);
  write(mean, divisor > 0.0 ? read(mean) / divisor : 0.0);
}

void clip_coefficient(const at::Tensor& norm, double max_norm, const at::Tensor& coefficient) {
  write(coefficient, max_norm > 0.0 ? std::min(1.0, max_norm / (read(norm) + 1e-6)) : 1.0);
}

void flag_if_finite(const at::Tensor& first, const at::Tensor& second, const at::Tensor& flag) {
  write(flag, std::isfinite(read(first)) && std::isfinite(read(second)) ? 1.0 : 0.0);
}

}  // namespace stepforge::cpu
