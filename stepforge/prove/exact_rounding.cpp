// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/round.h>

#include "stepforge/prove/exact_model.h"

namespace stepforge {

namespace {

constexpr double kGradientUnit = 1.0 / static_cast<double>(kExactLabels);

}  // namespace

at::Tensor to_integers(const at::Tensor& x) {
  return at::clamp(at::round(x), -kExactLimit, kExactLimit);
}

at::Tensor to_gradients(const at::Tensor& x) {
  return to_integers(x / kGradientUnit) * kGradientUnit;
}

}  // namespace stepforge
