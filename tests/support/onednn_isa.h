// SPDX-License-Identifier: Apache-2.0
// Makes oneDNN use AVX-512 instead of AMX in this test program: its AMX kernels allocate scratch memory for
// bf16 products, which the cost descriptors do not predict.
#pragma once

#include <cstdlib>

namespace stepforge::testing {

/// oneDNN reads the variable at its first product, so it must be set before main().
inline const bool onednn_without_amx = setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", 1) == 0;

}  // namespace stepforge::testing
