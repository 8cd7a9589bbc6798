// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/expert_swiglu.h"

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

template <typename T>
STEPFORGE_INLINE void weighted_row_body(const T* gate, const T* up, float weight, T* out, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float g = load(gate + f);
    store(out + f, g / (1.0F + exp_approx(-g)) * load(up + f) * weight);
  }
}

/// Returns the gradient of the weight. `out` may be grad_out.
template <typename T>
STEPFORGE_INLINE float weighted_row_gradient_body(const T* grad_out, const T* gate, const T* up, float weight,
                                                  T* grad_gate, T* grad_up, T* out, int64_t width) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t f = 0; f < width; ++f) {
    const float grad = load(grad_out + f);
    const float g = load(gate + f);
    const float u = load(up + f);
    const float inverse = 1.0F + exp_approx(-g);
    const float sigmoid = 1.0F / inverse;
    const float silu = g / inverse;  // the bits of the forward
    sum += grad * silu * u;
    const float weighted = grad * weight;
    store(grad_gate + f, weighted * u * (sigmoid + silu * (1.0F - sigmoid)));
    store(grad_up + f, weighted * silu);
    store(out + f, silu * u * weight);
  }
  return sum;
}

STEPFORGE_SIMD_CLONES void weighted_row(const float* gate, const float* up, float weight, float* out,
                                        int64_t width) {
  weighted_row_body(gate, up, weight, out, width);
}
STEPFORGE_SIMD_CLONES void weighted_row(const BFloat16* gate, const BFloat16* up, float weight, BFloat16* out,
                                        int64_t width) {
  weighted_row_body(gate, up, weight, out, width);
}
STEPFORGE_SIMD_CLONES float weighted_row_gradient(const float* grad_out, const float* gate, const float* up,
                                                  float weight, float* grad_gate, float* grad_up, float* out,
                                                  int64_t width) {
  return weighted_row_gradient_body(grad_out, gate, up, weight, grad_gate, grad_up, out, width);
}
STEPFORGE_SIMD_CLONES float weighted_row_gradient(const BFloat16* grad_out, const BFloat16* gate,
                                                  const BFloat16* up, float weight, BFloat16* grad_gate,
                                                  BFloat16* grad_up, BFloat16* out, int64_t width) {
  return weighted_row_gradient_body(grad_out, gate, up, weight, grad_gate, grad_up, out, width);
}

template <typename T>
void weighted_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                      const at::Tensor& out) {
  const int64_t width = out.size(1);
  const T* in = gate_up.const_data_ptr<T>();
  const float* weight = weights.const_data_ptr<float>();
  const int32_t* slot = slots.const_data_ptr<int32_t>();
  T* target = out.mutable_data_ptr<T>();
  at::parallel_for(0, out.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      weighted_row(in + 2 * n * width, in + (2 * n + 1) * width, weight[slot[n]], target + n * width, width);
    }
  });
}

template <typename T>
void weighted_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                       const at::Tensor& slots, const at::Tensor& grad_gate_up,
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
      const int64_t gate = 2 * n * width;
      to_weight[slot[n]] =
          weighted_row_gradient(grad + n * width, in + gate, in + gate + width, weight[slot[n]],
                                to_gate_up + gate, to_gate_up + gate + width, target + n * width, width);
    }
  });
}

}  // namespace

void expert_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& slots,
                           const at::Tensor& out) {
  if (gate_up.scalar_type() == at::kFloat) {
    weighted_forward<float>(gate_up, weights, slots, out);
  } else {
    weighted_forward<BFloat16>(gate_up, weights, slots, out);
  }
}

void expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& weights,
                            const at::Tensor& slots, const at::Tensor& grad_gate_up,
                            const at::Tensor& grad_weights, const at::Tensor& out) {
  if (gate_up.scalar_type() == at::kFloat) {
    weighted_backward<float>(grad_out, gate_up, weights, slots, grad_gate_up, grad_weights, out);
  } else {
    weighted_backward<BFloat16>(grad_out, gate_up, weights, slots, grad_gate_up, grad_weights, out);
  }
}

}  // namespace stepforge::cpu
