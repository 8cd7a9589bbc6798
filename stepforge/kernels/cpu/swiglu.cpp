// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/swiglu.h"

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/kernels.h"
#include "stepforge/kernels/cpu/simd.h"

namespace stepforge::cpu {
namespace {

constexpr float kGeluRoot = 0.797884561F;  // sqrt(2 / pi)
constexpr float kGeluCube = 0.044715F;

/// e^(-2 u) of gelu_tanh, whose share (1 + tanh(u)) / 2 is 1 / (1 + e^(-2 u)).
STEPFORGE_INLINE float gelu_exponential(float g) {
  return exp_approx(-2.0F * kGeluRoot * (g + kGeluCube * g * g * g));
}

template <typename T>
STEPFORGE_INLINE void gelu_forward_row_body(const T* gate, const T* up, T* out, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float g = load(gate + f);
    store(out + f, g / (1.0F + gelu_exponential(g)) * load(up + f));
  }
}

template <typename T>
STEPFORGE_INLINE void gelu_backward_row_body(const T* grad_out, const T* gate, const T* up, T* grad_gate,
                                             T* grad_up, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float grad = load(grad_out + f);
    const float g = load(gate + f);
    const float u = load(up + f);
    const float exponential = gelu_exponential(g);
    const float share = 1.0F / (1.0F + exponential);
    const float inner = 2.0F * kGeluRoot * (1.0F + 3.0F * kGeluCube * g * g);
    store(grad_gate + f, grad * u * (share + g * share * (exponential * share) * inner));
    store(grad_up + f, grad * g * share);
  }
}

template <typename T>
STEPFORGE_INLINE void forward_row_body(const T* gate, const T* up, T* out, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float g = load(gate + f);
    store(out + f, g / (1.0F + exp_approx(-g)) * load(up + f));
  }
}

template <typename T>
STEPFORGE_INLINE void backward_row_body(const T* grad_out, const T* gate, const T* up, T* grad_gate,
                                        T* grad_up, int64_t width) {
#pragma omp simd
  for (int64_t f = 0; f < width; ++f) {
    const float grad = load(grad_out + f);
    const float g = load(gate + f);
    const float u = load(up + f);
    const float sigmoid = 1.0F / (1.0F + exp_approx(-g));
    const float silu = g * sigmoid;
    store(grad_gate + f, grad * u * (sigmoid + silu * (1.0F - sigmoid)));
    store(grad_up + f, grad * silu);
  }
}

STEPFORGE_SIMD_CLONES void forward_row(const float* gate, const float* up, float* out, int64_t width) {
  forward_row_body(gate, up, out, width);
}
STEPFORGE_SIMD_CLONES void forward_row(const BFloat16* gate, const BFloat16* up, BFloat16* out,
                                       int64_t width) {
  forward_row_body(gate, up, out, width);
}
STEPFORGE_SIMD_CLONES void backward_row(const float* grad_out, const float* gate, const float* up,
                                        float* grad_gate, float* grad_up, int64_t width) {
  backward_row_body(grad_out, gate, up, grad_gate, grad_up, width);
}
STEPFORGE_SIMD_CLONES void backward_row(const BFloat16* grad_out, const BFloat16* gate, const BFloat16* up,
                                        BFloat16* grad_gate, BFloat16* grad_up, int64_t width) {
  backward_row_body(grad_out, gate, up, grad_gate, grad_up, width);
}

STEPFORGE_SIMD_CLONES void gelu_forward_row(const float* gate, const float* up, float* out, int64_t width) {
  gelu_forward_row_body(gate, up, out, width);
}
STEPFORGE_SIMD_CLONES void gelu_forward_row(const BFloat16* gate, const BFloat16* up, BFloat16* out,
                                            int64_t width) {
  gelu_forward_row_body(gate, up, out, width);
}
STEPFORGE_SIMD_CLONES void gelu_backward_row(const float* grad_out, const float* gate, const float* up,
                                             float* grad_gate, float* grad_up, int64_t width) {
  gelu_backward_row_body(grad_out, gate, up, grad_gate, grad_up, width);
}
STEPFORGE_SIMD_CLONES void gelu_backward_row(const BFloat16* grad_out, const BFloat16* gate,
                                             const BFloat16* up, BFloat16* grad_gate, BFloat16* grad_up,
                                             int64_t width) {
  gelu_backward_row_body(grad_out, gate, up, grad_gate, grad_up, width);
}

template <typename T>
void forward(const at::Tensor& gate_up, const at::Tensor& out, Activation activation) {
  const int64_t width = out.size(1);
  const T* in = gate_up.const_data_ptr<T>();
  T* target = out.mutable_data_ptr<T>();
  at::parallel_for(0, out.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T* gate = in + 2 * n * width;
      if (activation == Activation::silu) {
        forward_row(gate, gate + width, target + n * width, width);
      } else {
        gelu_forward_row(gate, gate + width, target + n * width, width);
      }
    }
  });
}

template <typename T>
void backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up,
              Activation activation) {
  const int64_t width = grad_out.size(1);
  const T* grad = grad_out.const_data_ptr<T>();
  const T* in = gate_up.const_data_ptr<T>();
  T* target = grad_gate_up.mutable_data_ptr<T>();
  at::parallel_for(0, grad_out.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t gate = 2 * n * width;
      if (activation == Activation::silu) {
        backward_row(grad + n * width, in + gate, in + gate + width, target + gate, target + gate + width,
                     width);
      } else {
        gelu_backward_row(grad + n * width, in + gate, in + gate + width, target + gate,
                          target + gate + width, width);
      }
    }
  });
}

}  // namespace

void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out, Activation activation) {
  if (gate_up.scalar_type() == at::kFloat) {
    forward<float>(gate_up, out, activation);
  } else {
    forward<BFloat16>(gate_up, out, activation);
  }
}

void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up, const at::Tensor& grad_gate_up,
                     Activation activation) {
  if (gate_up.scalar_type() == at::kFloat) {
    backward<float>(grad_out, gate_up, grad_gate_up, activation);
  } else {
    backward<BFloat16>(grad_out, gate_up, grad_gate_up, activation);
  }
}

}  // namespace stepforge::cpu
