// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/scalars.h"

#include <algorithm>
#include <cmath>

#include "stepforge/kernels/cpu/kernels.h"

namespace stepforge::cpu {
namespace {

double number(const at::Tensor& scalar) {
  return *scalar.const_data_ptr<double>();
}

void write(const at::Tensor& scalar, double result) {
  *scalar.mutable_data_ptr<double>() = result;
}

}  // namespace

void reciprocal_or_zero(const at::Tensor& count, const at::Tensor& weight) {
  write(weight, number(count) > 0.0 ? 1.0 / number(count) : 0.0);
}

void mean_in_order(const at::Tensor& values, const at::Tensor& count, const at::Tensor& mean) {
  const double divisor = number(count);
  sum_in_order(values, mean);
  write(mean, divisor > 0.0 ? number(mean) / divisor : 0.0);
}

void clip_coefficient(const at::Tensor& norm, double max_norm, const at::Tensor& coefficient) {
  write(coefficient, max_norm > 0.0 ? std::min(1.0, max_norm / (number(norm) + 1e-6)) : 1.0);
}

void flag_if_finite(const at::Tensor& first, const at::Tensor& second, const at::Tensor& flag) {
  write(flag, std::isfinite(number(first)) && std::isfinite(number(second)) ? 1.0 : 0.0);
}

}  // namespace stepforge::cpu
