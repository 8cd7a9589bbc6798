// SPDX-License-Identifier: Apache-2.0
// Tensors for tests.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "stepforge/base/random.h"

namespace stepforge::testing {

/// Values in [-2, 2] with mean 0, the same in every run.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const auto words = philox(seed, static_cast<uint64_t>(i));
    tensor.mutable_data_ptr<float>()[i] = uniform_float(words[0]) + uniform_float(words[1]) +
                                          uniform_float(words[2]) + uniform_float(words[3]) - 2.0F;
  }
  return tensor.to(dtype);
}

/// A number of a step (kernels/scalars.h).
inline at::Tensor scalar(double number) {
  return at::full({}, number, at::kDouble);
}

}  // namespace stepforge::testing
