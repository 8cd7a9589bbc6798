// SPDX-License-Identifier: Apache-2.0
// kernels/bias.h on a GPU.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/column_sums.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// x: [rows, width] of `type`, fp32 or bf16, changed in place. bias: [width] of bias_type, fp32 or `type`.
void bias_forward(DType type, void* x, DType bias_type, const void* bias, int64_t rows, int64_t width,
                  Stream stream);

/// grad: [rows, width]. grad_bias: [width], written. workspace: workspace_of(rows, width) elements.
void bias_backward(DType type, const void* grad, int64_t rows, int64_t width, float* grad_bias,
                   float* workspace, Stream stream);

}  // namespace stepforge::cuda
