// SPDX-License-Identifier: Apache-2.0
// Keeps oneDNN off AMX in this test program. Its AMX kernels allocate scratch of their own for bf16 products, which the cost
// descriptors do not predict: measured and predicted peaks are compared with the kernels for AVX-512.
#pragma once

#include <cstdlib>

namespace stepforge::testing {

/// oneDNN reads the variable at its first product, so that this must be set before main().
inline const bool onednn_without_amx = setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", 1) == 0;

}  // namespace stepforge::testing
