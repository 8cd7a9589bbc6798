// SPDX-License-Identifier: Apache-2.0
// Views of parts of tensors: a slice, a slice in a flat shard, the bytes.
#pragma once

#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

/// The memory of a contiguous tensor. Throws Error for any other.
std::span<std::byte> bytes_of(const at::Tensor& contiguous);

/// The view of `slice` of `whole`.
at::Tensor part_of(const at::Tensor& whole, const TensorSlice& slice);

/// The view of `held` in the flat `shard`, shaped like its slice.
at::Tensor part_of(const at::Tensor& shard, const ShardSlice& held);

}  // namespace stepforge
