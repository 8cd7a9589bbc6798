// SPDX-License-Identifier: Apache-2.0
// kernels/dropout_add.h on a GPU: the same elements are dropped.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// What both directions have in common. All pointers are to device memory.
struct Dropout {
  DType type = DType::f32;  ///< of activations: fp32 or bf16
  int64_t rows = 0;
  int64_t width = 0;
  double p = 0.0;                      ///< in [0, 1)
  uint64_t key = 0;                    ///< DropoutKey of kernels/dropout_add.h
  const int64_t* row_ids = nullptr;    ///< [rows]; not read if p is 0
  const int32_t* positions = nullptr;  ///< [rows]; not read if p is 0
  int64_t channel = 0;                 ///< of the first element of a row, among those of all ranks
};

/// x, residual, out: [rows, width]; out is written, and may be x or residual.
void dropout_add_forward(const Dropout& dropout, const void* x, const void* residual, void* out,
                         Stream stream);

/// grad_x: [rows, width], written; may be grad_out.
void dropout_add_backward(const Dropout& dropout, const void* grad_out, void* grad_x, Stream stream);

}  // namespace stepforge::cuda
