// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/tensor_check.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

void check_shape(const at::Tensor& tensor, std::string_view name, at::IntArrayRef shape) {
  if (!tensor.defined())
    throw Error(format("{}: expected a tensor of shape {}, got none", name, shape_text(shape.vec())));
  if (tensor.sizes() != shape) {
    throw Error(format("{}: expected shape {}, got {}", name, shape_text(shape.vec()),
                       shape_text(tensor.sizes().vec())));
  }
  if (!tensor.is_contiguous()) {
    throw Error(
        format("{}: shape {} is not contiguous; call contiguous() first", name, shape_text(shape.vec())));
  }
}

void check_tensor(const at::Tensor& tensor, std::string_view name, at::IntArrayRef shape,
                  at::ScalarType dtype) {
  check_shape(tensor, name, shape);
  if (tensor.scalar_type() != dtype) {
    throw Error(format("{}: expected elements of type {}, got {}", name, c10::toString(dtype),
                       c10::toString(tensor.scalar_type())));
  }
}

void check_scalar(const at::Tensor& scalar, std::string_view name) {
  check_tensor(scalar, name, {}, at::kDouble);
}

at::ScalarType compute_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void write_or_add(const at::Tensor& target, const at::Tensor& value, bool accumulate) {
  if (accumulate) {
    target.add_(value);
  } else {
    target.copy_(value);
  }
}

}  // namespace stepforge
