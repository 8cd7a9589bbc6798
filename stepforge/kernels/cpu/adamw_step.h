// SPDX-License-Identifier: Apache-2.0
// The arithmetic of AdamW's update, for moments in fp32, bf16 and 8 bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "stepforge/kernels/adamw.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {

struct AdamWCoefficients {
  float decay;  ///< 1 - lr * weight_decay
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float step_size;                ///< lr / (1 - beta1^t)
  float inverse_root_correction;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
  float grad_scale;
};

/// Reads the scalars. Throws Error if scalars.number < 1.
AdamWCoefficients adamw_coefficients(const AdamWOptions& options, const UpdateScalars& scalars);

/// The update of `count` elements.
template <typename Moment>
STEPFORGE_INLINE void adamw_step(float* parameter, const float* grad, Moment* first, Moment* second,
                                 int64_t count, const AdamWCoefficients& settings) {
  const AdamWCoefficients c = settings;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * c.grad_scale;
    const float m = c.beta1 * load(first + i) + c.one_minus_beta1 * g;
    const float v = c.beta2 * load(second + i) + c.one_minus_beta2 * g * g;
    const float denominator = std::sqrt(v) * c.inverse_root_correction + c.eps;
    store(first + i, m);
    store(second + i, v);
    parameter[i] = parameter[i] * c.decay - c.step_size * (m / denominator);
  }
}

}  // namespace stepforge::cpu
