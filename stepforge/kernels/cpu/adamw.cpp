// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw.h"

#include <cmath>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/adamw_step.h"
#include "stepforge/kernels/cpu/scalar_memory.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

STEPFORGE_SIMD_CLONES void adamw_range(float* parameter, const float* grad, float* first, float* second,
                                       int64_t count, const AdamWCoefficients& coefficients) {
  adamw_step(parameter, grad, first, second, count, coefficients);
}
STEPFORGE_SIMD_CLONES void adamw_range(float* parameter, const float* grad, BFloat16* first, BFloat16* second,
                                       int64_t count, const AdamWCoefficients& coefficients) {
  adamw_step(parameter, grad, first, second, count, coefficients);
}

template <typename Moment>
void update_moments(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                    const at::Tensor& second_moment, int64_t begin, int64_t end,
                    const AdamWCoefficients& coefficients) {
  float* p = parameter.mutable_data_ptr<float>();
  const float* g = grad.const_data_ptr<float>();
  Moment* m = first_moment.mutable_data_ptr<Moment>();
  Moment* v = second_moment.mutable_data_ptr<Moment>();
  at::parallel_for(begin, end, kElementsPerTask, [&](int64_t from, int64_t to) {
    adamw_range(p + from, g + from, m + from, v + from, to - from, coefficients);
  });
}

}  // namespace

AdamWCoefficients adamw_coefficients(const AdamWOptions& options, const UpdateScalars& scalars) {
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

void adamw_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& first_moment,
                  const at::Tensor& second_moment, int64_t begin, int64_t end, const AdamWOptions& options,
                  const UpdateScalars& scalars) {
  if (read(scalars.finite) == 0.0) return;
  const AdamWCoefficients coefficients = adamw_coefficients(options, scalars);
  const bool narrow = first_moment.scalar_type() == at::kBFloat16;
  (narrow ? update_moments<BFloat16> : update_moments<float>)(parameter, grad, first_moment, second_moment,
                                                              begin, end, coefficients);
}

}  // namespace stepforge::cpu
