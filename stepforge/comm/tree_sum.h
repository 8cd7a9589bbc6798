// SPDX-License-Identifier: Apache-2.0
// Sums over ranks in a fixed order.
#pragma once

#include <cstddef>
#include <span>

#include "stepforge/base/dtype.h"

namespace stepforge {

/// Throws Error unless tree_sum supports the type (fp64, fp32, bf16, fp16, int64, int32) and `bytes` is a
/// multiple of its size.
void check_sum(std::size_t bytes, DType dtype);

/// output[i] = the sum of source[i] over `sources`, each of `bytes` bytes, in the order that Communicator
/// states. Partial sums are kept as in a binary counter; leftovers are joined starting with the last. bf16
/// and fp16 are summed in fp32 and rounded once, to nearest, ties to even; integers wrap around. `output` may
/// be one of the sources. Throws Error as check_sum does.
void tree_sum(std::span<const std::byte* const> sources, std::byte* output, std::size_t bytes, DType dtype);

}  // namespace stepforge
