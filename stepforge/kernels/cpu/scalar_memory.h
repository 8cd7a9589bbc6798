// SPDX-License-Identifier: Apache-2.0
// The memory of a scalar of kernels/scalars.h. Only the CPU's own kernels may look at it.
#pragma once

#include <ATen/core/Tensor.h>

namespace stepforge::cpu {

inline double read(const at::Tensor& scalar) {
  return *scalar.const_data_ptr<double>();
}

inline void write(const at::Tensor& scalar, double number) {
  *scalar.mutable_data_ptr<double>() = number;
}

}  // namespace stepforge::cpu
