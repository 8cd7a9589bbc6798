// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/clamped_swiglu.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

struct ClampConstants {
  float limit;
  float alpha;
};

template <typename T>
STEPFORGE_INLINE void clamped_row_body(const T* in, float weight, ClampConstants c, T* out, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float raw_gate = load(in + 2 * f);
    const float raw_up = load(in + 2 * f + 1);
    const float gate = raw_gate > c.limit ? c.limit : raw_gate;
    const float below = raw_up > c.limit ? c.limit : raw_up;
    const float up = below < -c.limit ? -c.limit : below;
    store(out + f, gate / (1.0F + exp_approx(-c.alpha * gate)) * (up + 1.0F) * weight);
  }
}

/// Returns the gradient of the weight. `out` may be grad_out.
template <typename T>
STEPFORGE_INLINE float clamped_row_gradient_body(const T* grad_out, const T* in, float weight,
                                                 ClampConstants c, T* grad_in, T* out, int64_t width) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t f = 0; f < width; ++f) {
    const float grad = load(grad_out + f);
    const float raw_gate = load(in + 2 * f);
    const float raw_up = load(in + 2 * f + 1);
    const float gate = raw_gate > c.limit ? c.limit : raw_gate;
    const float below = raw_up > c.limit ? c.limit : raw_up;
    const float up = below < -c.limit ? -c.limit : below;
    const float inverse = 1.0F + exp_approx(-c.alpha * gate);
    const float sigmoid = 1.0F / inverse;
    const float glu = gate / inverse;  // the bits of the forward
    sum += grad * glu * (up + 1.0F);
    const float weighted = grad * weight;
    const float to_gate = weighted * (up + 1.0F) * (sigmoid + c.alpha * glu * (1.0F - sigmoid));
    const float to_up = weighted * glu;
    store(grad_in + 2 * f, raw_gate > c.limit ? 0.0F : to_gate);
    store(grad_in + 2 * f + 1, raw_up > c.limit || raw_up < -c.limit ? 0.0F : to_up);
    store(out + f, glu * (up + 1.0F) * weight);
  }
  return sum;
}

STEPFORGE_SIMD_CLONES void clamped_row(const float* in, float weight, ClampConstants c, float* out,
                                       int64_t width) {
  clamped_row_body(in, weight, c, out, width);
}
STEPFORGE_SIMD_CLONES void clamped_row(const BFloat16* in, float weight, ClampConstants c, BFloat16* out,
                                       int64_t width) {
  clamped_row_body(in, weight, c, out, width);
}
STEPFORGE_SIMD_CLONES float clamped_row_gradient(const float* grad_out, const float* in, float weight,
                                                 ClampConstants c, float* grad_in, float* out,
                                                 int64_t width) {
  return clamped_row_gradient_body(grad_out, in, weight, c, grad_in, out, width);
}
STEPFORGE_SIMD_CLONES float clamped_row_gradient(const BFloat16* grad_out, const BFloat16* in, float weight,
                                                 ClampConstants c, BFloat16* grad_in, BFloat16* out,
                                                 int64_t width) {
  return clamped_row_gradient_body(grad_out, in, weight, c, grad_in, out, width);
}

ClampConstants constants_of(const ClampedSwiglu& activation) {
  return {static_cast<float>(activation.limit), static_cast<float>(activation.alpha)};
}

template <typename T>
void clamped_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                     ClampConstants constants, const at::Tensor& out) {
  const int64_t width = out.size(1);
  const T* in = gate_up.const_data_ptr<T>();
  const float* weight = weights.const_data_ptr<float>();
  const int32_t* slot = slots.const_data_ptr<int32_t>();
  T* target = out.mutable_data_ptr<T>();
  at::parallel_for(0, out.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      clamped_row(in + 2 * n * width, weight[slot[n]], constants, target + n * width, width);
  });
}

template <typename T>
void clamped_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                      const at::Tensor& slots, ClampConstants constants, const at::Tensor& grad_gate_up,
                      const at::Tensor& grad_weights, const at::Tensor& out) {
  const int64_t width = out.size(1);
  const T* grad = grad_out.const_data_ptr<T>();
  const T* in = gate_up.const_data_ptr<T>();
  const float* weight = weights.const_data_ptr<float>();
  const int32_t* slot = slots.const_data_ptr<int32_t>();
  T* to_gate_up = grad_gate_up.mutable_data_ptr<T>();
  float* to_weight = grad_weights.mutable_data_ptr<float>();
  T* target = out.mutable_data_ptr<T>();
  at::parallel_for(0, out.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      to_weight[slot[n]] =
          clamped_row_gradient(grad + n * width, in + 2 * n * width, weight[slot[n]], constants,
                               to_gate_up + 2 * n * width, target + n * width, width);
    }
  });
}

}  // namespace

void clamped_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                            const ClampedSwiglu& activation, const at::Tensor& out) {
  const ClampConstants constants = constants_of(activation);
  if (gate_up.scalar_type() == at::kFloat) {
    clamped_forward<float>(gate_up, weights, slots, constants, out);
  } else {
    clamped_forward<BFloat16>(gate_up, weights, slots, constants, out);
  }
}

void clamped_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                             const at::Tensor& slots, const ClampedSwiglu& activation,
                             const at::Tensor& grad_gate_up, const at::Tensor& grad_weights,
                             const at::Tensor& out) {
  const ClampConstants constants = constants_of(activation);
  if (gate_up.scalar_type() == at::kFloat) {
    clamped_backward<float>(grad_out, gate_up, weights, slots, constants, grad_gate_up, grad_weights, out);
  } else {
    clamped_backward<BFloat16>(grad_out, gate_up, weights, slots, constants, grad_gate_up, grad_weights, out);
  }
}

}  // namespace stepforge::cpu
