// SPDX-License-Identifier: Apache-2.0
// The 8-bit numbers of dynamic quantization (arXiv:2110.02861, section 2.2): for i = 0 to 6, 10^(i - 6) times the middles of equal parts
// of [0.1, 1]: with both signs 2^i parts, otherwise 2^(i + 1); and 0 and 1. Bit for bit those of bitsandbytes 0.50.
#pragma once

#include <array>

namespace stepforge {

/// What each byte stands for, ascending.
const std::array<float, 256>& dynamic_code(bool is_signed);

}  // namespace stepforge
