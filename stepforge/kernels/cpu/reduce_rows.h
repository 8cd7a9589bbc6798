// SPDX-License-Identifier: Apache-2.0
// The last step of sums over tokens: adds partial sums in their order.
#pragma once

#include <cstdint>

namespace stepforge::cpu {

/// target[c] = (accumulate ? target[c] : 0) + sum of partials[r * stride + c] over r, in the order of r.
void reduce_rows(const float* partials, int64_t rows, int64_t width, int64_t stride, float* target,
                 bool accumulate);

}  // namespace stepforge::cpu
