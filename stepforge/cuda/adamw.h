// SPDX-License-Identifier: Apache-2.0
// The optimizer updates of kernels/adamw.h and kernels/lion.h on a GPU: one pass over each element. The step's numbers are read
// from device memory when a kernel runs.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// UpdateScalars of kernels/adamw.h: four numbers in device memory.
struct UpdateScalars {
  const double* finite = nullptr;  ///< 0: the update changes nothing
  const double* number = nullptr;  ///< t: 1 in the first update. Below 1 AdamW's parameters become NaN.
  const double* lr_factor = nullptr;
  const double* grad_scale = nullptr;
};

/// The settings of both, with the names of AdamWOptions and LionOptions. Lion has no eps.
struct UpdateOptions {
  double lr = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double eps = 0.0;
  double weight_decay = 0.0;
};

/// parameter, grad: fp32 [elements]; the moments: fp32 or bf16, as `moments` says. For an interval of a buffer the caller adds its
/// begin to all pointers.
void adamw_update(float* parameter, const float* grad, DType moments, void* first_moment, void* second_moment,
                  int64_t elements, const UpdateOptions& options, const UpdateScalars& scalars,
                  Stream stream);

/// All fp32 [elements].
void lion_update(float* parameter, const float* grad, float* momentum, int64_t elements,
                 const UpdateOptions& options, const UpdateScalars& scalars, Stream stream);

}  // namespace stepforge::cuda
