// SPDX-License-Identifier: Apache-2.0
// The 16 numbers of NF4: quantiles of a normal distribution, scaled to [-1, 1], and 0 (arXiv:2305.14314, appendix E).
#pragma once

#include <array>

namespace stepforge {

inline constexpr std::array<float, 16> kNf4Values = {
    -1.0F,           -0x1.647362p-1F, -0x1.0cd66p-1F,  -0x1.94654p-2F,
    -0x1.23449ap-2F, -0x1.7a6a7ep-3F, -0x1.74f0e2p-4F, 0.0F,
    0x1.45f5fep-4F,  0x1.4995c6p-3F,  0x1.f809bap-3F,  0x1.5a0674p-2F,
    0x1.c3497p-2F,   0x1.200f56p-1F,  0x1.722766p-1F,  1.0F};

}  // namespace stepforge
