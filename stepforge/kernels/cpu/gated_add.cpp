// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/gated_add.h"

#include <cmath>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

template <typename T>
STEPFORGE_INLINE void gated_row_body(const T* x, const T* y, float open, T* out, int64_t width) {
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) store(out + d, load(x + d) + open * load(y + d));
}

/// Returns the sum of grad_out * y.
template <typename T>
STEPFORGE_INLINE float gated_row_gradient_body(const T* grad_out, const T* y, float open, T* grad_y,
                                               int64_t width) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < width; ++d) {
    const float grad = load(grad_out + d);
    sum += grad * load(y + d);
    store(grad_y + d, grad * open);
  }
  return sum;
}

STEPFORGE_SIMD_CLONES void gated_row(const float* x, const float* y, float open, float* out, int64_t width) {
  gated_row_body(x, y, open, out, width);
}
STEPFORGE_SIMD_CLONES void gated_row(const BFloat16* x, const BFloat16* y, float open, BFloat16* out,
                                     int64_t width) {
  gated_row_body(x, y, open, out, width);
}
STEPFORGE_SIMD_CLONES float gated_row_gradient(const float* grad_out, const float* y, float open,
                                               float* grad_y, int64_t width) {
  return gated_row_gradient_body(grad_out, y, open, grad_y, width);
}
STEPFORGE_SIMD_CLONES float gated_row_gradient(const BFloat16* grad_out, const BFloat16* y, float open,
                                               BFloat16* grad_y, int64_t width) {
  return gated_row_gradient_body(grad_out, y, open, grad_y, width);
}

float open_of(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

template <typename T>
void gated_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate, const at::Tensor& out) {
  const int64_t width = y.size(1);
  const T* left = x.const_data_ptr<T>();
  const T* right = y.const_data_ptr<T>();
  const float* logit = gate.const_data_ptr<float>();
  T* target = out.mutable_data_ptr<T>();
  at::parallel_for(0, y.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      gated_row(left + n * width, right + n * width, open_of(logit[n]), target + n * width, width);
  });
}

template <typename T>
void gated_backward(const at::Tensor& grad_out, const at::Tensor& y, const at::Tensor& gate,
                    const at::Tensor& grad_y, const at::Tensor& grad_gate) {
  const int64_t width = y.size(1);
  const T* grad = grad_out.const_data_ptr<T>();
  const T* right = y.const_data_ptr<T>();
  const float* logit = gate.const_data_ptr<float>();
  T* target = grad_y.mutable_data_ptr<T>();
  float* to_gate = grad_gate.mutable_data_ptr<float>();
  at::parallel_for(0, y.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float open = open_of(logit[n]);
      to_gate[n] = open * (1.0F - open) *
                   gated_row_gradient(grad + n * width, right + n * width, open, target + n * width, width);
    }
  });
}

}  // namespace

void gated_add_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                       const at::Tensor& out) {
  if (y.scalar_type() == at::kFloat) {
    gated_forward<float>(x, y, gate, out);
  } else {
    gated_forward<BFloat16>(x, y, gate, out);
  }
}

void gated_add_backward(const at::Tensor& grad_out, const at::Tensor& y, const at::Tensor& gate,
                        const at::Tensor& grad_y, const at::Tensor& grad_gate) {
  if (y.scalar_type() == at::kFloat) {
    gated_backward<float>(grad_out, y, gate, grad_y, grad_gate);
  } else {
    gated_backward<BFloat16>(grad_out, y, gate, grad_y, grad_gate);
  }
}

}  // namespace stepforge::cpu
