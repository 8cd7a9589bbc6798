// SPDX-License-Identifier: Apache-2.0
// kernels/gated_add.h on a GPU.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// x, y, out: [rows, width] of `type`, fp32 or bf16; out is written and may be x. gate: [rows].
void gated_add_forward(DType type, const void* x, const void* y, const float* gate, int64_t rows,
                       int64_t width, void* out, Stream stream);

/// grad_y: [rows, width], grad_gate: [rows], both written. grad_y may be grad_out.
void gated_add_backward(DType type, const void* grad_out, const void* y, const float* gate, int64_t rows,
                        int64_t width, void* grad_y, float* grad_gate, Stream stream);

}  // namespace stepforge::cuda
