// SPDX-License-Identifier: Apache-2.0
// Initial values of parameters: each is a function of (key, element index) only, so any sub-range of a tensor
// can be filled by any rank, in any order, on any processor, with the same values.
//
// Elements 4i .. 4i+3 come from the four words of philox(key, i, attempt) by two Box-Muller pairs (cpu/normal_numbers.h). A
// truncated normal takes the first attempt whose value is within the cutoff.
#pragma once

#include <cstdint>

#include "stepforge/modelspec/parameter.h"

namespace stepforge {

/// Fills data[0 .. count) with the values of elements first_index .. first_index + count of the tensor that
/// owns `key` (stream_key(seed, name)). Throws Error for a negative index or count, a std that is negative or
/// not finite, or a cutoff below 0.05.
void fill_initial(float* data, int64_t first_index, int64_t count, const Initializer& initializer,
                  uint64_t key);

/// The value of one element, computed in fp64.
float initial_value_reference(int64_t index, const Initializer& initializer, uint64_t key);

}  // namespace stepforge
