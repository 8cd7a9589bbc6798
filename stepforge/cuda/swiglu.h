// SPDX-License-Identifier: Apache-2.0
// kernels/swiglu.h on a GPU.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/stream.h"
#include "stepforge/modelspec/layer_traits.h"

namespace stepforge::cuda {

/// GatedRows of kernels/swiglu.h. All pointers are to device memory.
struct GatedRows {
  int64_t rows = 0;
  int64_t width = 0;                         ///< F: columns of the result
  Activation activation = Activation::silu;  ///< without limits
  bool clamped = false;                      ///< columns of gate and up in turn, and `limits`
  ClampedSwiglu limits = {};
  const float* weights = nullptr;  ///< [rows]; null: all are 1
  const int32_t* slots = nullptr;  ///< [rows]: where the weight of a row is
};

/// gate_up: [rows, 2 width], out: [rows, width], written; both of `type`, fp32 or bf16.
void gated_forward(DType type, const void* gate_up, const GatedRows& rows, void* out, Stream stream);

/// grad_gate_up: [rows, 2 width], written; may be gate_up. grad_weights: fp32 [rows], written if there are weights.
void gated_backward(DType type, const void* grad_out, const void* gate_up, const GatedRows& rows,
                    void* grad_gate_up, float* grad_weights, Stream stream);

}  // namespace stepforge::cuda
