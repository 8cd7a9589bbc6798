// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw.h"

#include <cmath>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/cpu/scalar_memory.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

struct Coefficients {
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

/// Vectorized only with -fno-math-errno: otherwise square roots must set errno.
STEPFORGE_SIMD_CLONES void update_range(float* parameter, const float* grad, float* first, float* second,
                                        int64_t count, const Coefficients& settings) {
  const Coefficients c = settings;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * c.grad_scale;
    const float m = c.beta1 * first[i] + c.one_minus_beta1 * g;
    const float v = c.beta2 * second[i] + c.one_minus_beta2 * g * g;
    const float denominator = std::sqrt(v) * c.inverse_root_correction + c.eps;
    first[i] = m;
    second[i] = v;
    parameter[i] = parameter[i] * c.decay - c.step_size * (m / denominator);
  }
}

Coefficients coefficients_of(const AdamWOptions& options, const UpdateScalars& scalars) {
  const double number = read(scalars.number);
  if (number < 1.0) throw Error(format("adamw: update number {}: must be at least 1, the first", number));
  const double lr = options.lr * read(scalars.lr_factor);
  const double correction1 = 1.0 - std::pow(options.beta1, number);
  const double correction2 = 1.0 - std::pow(options.beta2, number);
  return {
      .decay = static_cast<float>(1.0 - lr * options.weight_decay),
      .beta1 = static_cast<float>(options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
      .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
      .step_size = static_cast<float>(lr / correction1),
      .inverse_root_correction = static_cast<float>(1.0 / std::sqrt(correction2)),
      .eps = static_cast<float>(options.eps),
      .grad_scale = static_cast<float>(read(scalars.grad_scale)),
  };
}

}  // namespace

void adamw_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                  const at::Tensor& second_moment, int64_t begin, int64_t end, const AdamWOptions& options,
                  const UpdateScalars& scalars) {
  if (read(scalars.finite) == 0.0) return;
  const Coefficients coefficients = coefficients_of(options, scalars);
  float* p = parameter.mutable_data_ptr<float>();
  const float* g = grad.const_data_ptr<float>();
  float* m = first_moment.mutable_data_ptr<float>();
  float* v = second_moment.mutable_data_ptr<float>();
  at::parallel_for(begin, end, kElementsPerTask, [&](int64_t from, int64_t to) {
    update_range(p + from, g + from, m + from, v + from, to - from, coefficients);
  });
}

}  // namespace stepforge::cpu
