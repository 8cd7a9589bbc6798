// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/plugin/arguments.h"

#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge::cuda_plugin {

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::f32;
    case at::kBFloat16:
      return DType::bf16;
    case at::kDouble:
      return DType::f64;
    default:
      throw Error(format("CUDA kernels do not take {}", c10::toString(tensor.scalar_type())));
  }
}

at::Tensor workspace(int64_t elements, const at::Tensor& tensor) {
  return at::empty({elements}, tensor.options().dtype(at::kFloat));
}

bool takes_weight(const at::Tensor& weight, const at::Tensor& x) {
  return weight.is_contiguous() &&
         (weight.scalar_type() == at::kFloat || weight.scalar_type() == x.scalar_type());
}

}  // namespace stepforge::cuda_plugin
