// SPDX-License-Identifier: Apache-2.0
// kernels/rms_norm.h on a GPU.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/column_sums.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// What both directions have in common. All pointers are to device memory.
struct RmsNorm {
  DType type = DType::f32;  ///< of activations: fp32 or bf16
  int64_t rows = 0;
  int64_t width = 0;
  const void* weight = nullptr;    ///< [width]
  DType weight_type = DType::f32;  ///< fp32, or `type`
  double offset = 0.0;
};

/// x: [rows, width]; out: [rows, width], written; rstd: [rows], written.
void rms_norm_forward(const RmsNorm& norm, const void* x, double eps, void* out, float* rstd, Stream stream);

/// grad_x: [rows, width], written; may be grad_out or residual_grad. residual_grad: added to grad_x, or null. grad_weight: [width],
/// written. workspace: workspace_of(rows, width) elements.
void rms_norm_backward(const RmsNorm& norm, const void* grad_out, const void* x, const float* rstd,
                       const void* residual_grad, void* grad_x, float* grad_weight, float* workspace,
                       Stream stream);

}  // namespace stepforge::cuda
