// SPDX-License-Identifier: Apache-2.0
// Products of blocks of bf16 with sums in fp32, on processors that multiply pairs of bf16.
#pragma once

#include "stepforge/kernels/cpu/block_gemm.h"

namespace stepforge::cpu {

/// Like BlockGemm::rows_ahead, but each 32 bits of a and b are two bf16, of steps 2 k and 2 k + 1: the depth is half of that of
/// the product. Null if the processor has no such instruction, or one for whole tiles, which oneDNN's block products use.
void (*pair_product())(const BlockProduct&);

}  // namespace stepforge::cpu
