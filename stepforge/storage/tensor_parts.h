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

/// The memory of `tensor` is used by this thread's current stream, whichever stream it was allocated for: call it before the
/// thread drops the tensor. Nothing on the host.
void use_on_current_stream(const at::Tensor& tensor);

/// The host waits for what this thread's current stream has, before it reads what a stream copies to it. Nothing on the CPU.
void wait_for_device(c10::Device device);

/// The view of `slice` of `whole`.
at::Tensor part_of(const at::Tensor& whole, const TensorSlice& slice);

/// The view of `held` in the flat `shard`, shaped like its slice.
at::Tensor part_of(const at::Tensor& shard, const ShardSlice& held);

}  // namespace stepforge
