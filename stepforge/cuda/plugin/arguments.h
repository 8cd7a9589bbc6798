// SPDX-License-Identifier: Apache-2.0
// From tensors to what kernels take: pointers to their elements, types, workspaces.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/base/dtype.h"

namespace stepforge::cuda_plugin {

/// Throws Error for a type that no kernel takes: others than fp32, bf16 and fp64.
DType dtype_of(const at::Tensor& tensor);

/// fp32 memory on the device of `tensor`, for kernels of its current stream.
at::Tensor workspace(int64_t elements, const at::Tensor& tensor);

/// Whether kernels take `weight` with activations `x`: it is contiguous, and fp32 or of the type of x.
bool takes_weight(const at::Tensor& weight, const at::Tensor& x);

/// The elements of a contiguous tensor of this type; null if it is undefined.
template <typename T>
const T* read(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}
template <typename T>
T* write(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
}

/// The same for elements of any type.
inline const void* read_any(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}
inline void* write_any(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

}  // namespace stepforge::cuda_plugin
