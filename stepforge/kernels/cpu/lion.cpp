// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/lion.h"

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/scalar_memory.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

struct Coefficients {
  float decay;  ///< 1 - lr * weight_decay
  float lr;
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float grad_scale;
};

STEPFORGE_SIMD_CLONES void update_range(float* parameter, const float* grad, float* momentum, int64_t count,
                                        const Coefficients& settings) {
  const Coefficients c = settings;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * c.grad_scale;
    const float direction = c.beta1 * momentum[i] + c.one_minus_beta1 * g;
    const float step = direction > 0.0F ? c.lr : direction < 0.0F ? -c.lr : direction;
    parameter[i] = parameter[i] * c.decay - step;
    momentum[i] = c.beta2 * momentum[i] + c.one_minus_beta2 * g;
  }
}

}  // namespace

void lion_update(const at::Tensor& parameter, const at::Tensor& grad, const at::Tensor& momentum,
                 const LionOptions& options, const UpdateScalars& scalars) {
  if (read(scalars.finite) == 0.0) return;
  const double lr = options.lr * read(scalars.lr_factor);
  const Coefficients coefficients = {.decay = static_cast<float>(1.0 - lr * options.weight_decay),
                                     .lr = static_cast<float>(lr),
                                     .beta1 = static_cast<float>(options.beta1),
                                     .beta2 = static_cast<float>(options.beta2),
                                     .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
                                     .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
                                     .grad_scale = static_cast<float>(read(scalars.grad_scale))};
  float* p = parameter.mutable_data_ptr<float>();
  const float* g = grad.const_data_ptr<float>();
  float* m = momentum.mutable_data_ptr<float>();
  at::parallel_for(0, parameter.numel(), kElementsPerTask, [&](int64_t from, int64_t to) {
    update_range(p + from, g + from, m + from, to - from, coefficients);
  });
}

}  // namespace stepforge::cpu
