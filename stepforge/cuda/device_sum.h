// SPDX-License-Identifier: Apache-2.0
// tree_sum() of comm/tree_sum.h on a GPU.
#pragma once

#include <cstddef>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// output[i] = the sum of element i of `members` sources of `bytes` bytes each, in the order of comm/tree_sum.h. Source m is at
/// `staging` + m * `stride`; that of `own_member` is at `own`, which may be `output`. The type is one of those that tree_sum() takes.
/// The bits are its bits, except the bits of NaN.
void device_tree_sum(const std::byte* staging, std::size_t stride, const std::byte* own, int own_member,
                     int members, std::byte* output, std::size_t bytes, DType dtype, Stream stream);

}  // namespace stepforge::cuda
