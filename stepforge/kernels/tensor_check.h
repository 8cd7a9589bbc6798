// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments of operations, and what references share.
#pragma once

#include <algorithm>
#include <cstdint>
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

/// The type in which references compute: fp64 for fp64, else fp32. Statistics of fp64 inputs may be fp64 too.
at::ScalarType compute_type(const at::Tensor& tensor);

/// Writes `value` to `target`, or adds it, converting to the target's type.
void write_or_add(const at::Tensor& target, const at::Tensor& value, bool accumulate);

/// Calls body(begin, end) for slices of [begin, end) of a flat buffer: references keep their temporaries small.
template <typename Body>
void for_each_slice(int64_t begin, int64_t end, const Body& body) {
  constexpr int64_t kSlice = int64_t{1} << 22;  // elements, 16 MiB of fp32
  for (; begin < end; begin += kSlice) body(begin, std::min(begin + kSlice, end));
}

}  // namespace stepforge
