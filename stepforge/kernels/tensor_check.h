// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments of fused operations, and the rule by which an operation picks its implementation.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// Throws Error unless `tensor` is defined, contiguous and of this shape. `name` is the argument's name in
/// the message.
void check_shape(const at::Tensor& tensor, std::string_view name, at::IntArrayRef shape);

/// check_shape, and the element type must be `dtype`.
void check_tensor(const at::Tensor& tensor, std::string_view name, at::IntArrayRef shape,
                  at::ScalarType dtype);

/// Throws Error unless `scalar` is a number of a step (kernels/scalars.h): fp64 without dimensions.
void check_scalar(const at::Tensor& scalar, std::string_view name);

/// Whether a fused CPU kernel accepts this tensor: on the CPU, fp32 or bf16. Other tensors run the reference.
bool has_cpu_kernel(const at::Tensor& tensor);

/// The type in which references compute: fp64 for fp64, else fp32. Statistics of fp64 inputs may be fp64 too.
at::ScalarType compute_type(const at::Tensor& tensor);

/// Writes `value` to `target`, or adds it, converting to the target's type.
void write_or_add(const at::Tensor& target, const at::Tensor& value, bool accumulate);

}  // namespace stepforge
