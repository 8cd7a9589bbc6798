// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/rms_norm.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

template <typename T>
STEPFORGE_INLINE void forward_rows_body(const T* x, const float* weight, float eps, T* out, float* rstd,
                                        int64_t rows, int64_t width) {
  for (int64_t n = 0; n < rows; ++n) {
    const T* row = x + n * width;
    T* target = out + n * width;
    float squares = 0.0F;
#pragma omp simd reduction(+ : squares)
    for (int64_t d = 0; d < width; ++d) squares += load(row + d) * load(row + d);
    const float scale = 1.0F / std::sqrt(squares / static_cast<float>(width) + eps);
    rstd[n] = scale;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) store(target + d, load(row + d) * scale * weight[d]);
  }
}

STEPFORGE_SIMD_CLONES void forward_rows(const float* x, const float* weight, float eps, float* out,
                                        float* rstd, int64_t rows, int64_t width) {
  forward_rows_body(x, weight, eps, out, rstd, rows, width);
}
STEPFORGE_SIMD_CLONES void forward_rows(const BFloat16* x, const float* weight, float eps, BFloat16* out,
                                        float* rstd, int64_t rows, int64_t width) {
  forward_rows_body(x, weight, eps, out, rstd, rows, width);
}

/// Pointers of one range of rows. `partial` [width] gets the range's share of grad_weight.
template <typename T>
struct BackwardRows {
  const T* grad_out;
  const T* x;
  const float* weight;
  const float* rstd;
  const T* residual_grad;  ///< or null
  T* grad_x;
  float* partial;
  int64_t rows;
  int64_t width;
};

/// One row. Members are copied to locals so that the compiler knows that stores do not change them.
template <bool kResidual, typename T>
STEPFORGE_INLINE void backward_row_body(const BackwardRows<T>& r, int64_t n) {
  const int64_t width = r.width;
  const T* grad = r.grad_out + n * width;
  const T* x = r.x + n * width;
  const T* residual = r.residual_grad + (kResidual ? n * width : 0);
  const float* weight = r.weight;
  T* target = r.grad_x + n * width;
  float* partial = r.partial;
  const float scale = r.rstd[n];
  float dot = 0.0F;
#pragma omp simd reduction(+ : dot)
  for (int64_t d = 0; d < width; ++d) dot += load(grad + d) * weight[d] * load(x + d);
  const float pull = dot * scale * scale / static_cast<float>(width);
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) {
    const float g = load(grad + d);
    const float value = load(x + d);
    partial[d] += g * value * scale;
    const float own = scale * (g * weight[d] - value * pull);
    store(target + d, kResidual ? own + load(residual + d) : own);
  }
}

template <typename T>
STEPFORGE_INLINE void backward_rows_body(const BackwardRows<T>& r) {
  for (int64_t d = 0; d < r.width; ++d) r.partial[d] = 0.0F;
  for (int64_t n = 0; n < r.rows; ++n) {
    if (r.residual_grad != nullptr) {
      backward_row_body<true>(r, n);
    } else {
      backward_row_body<false>(r, n);
    }
  }
}

STEPFORGE_SIMD_CLONES void backward_rows(const BackwardRows<float>& rows) {
  backward_rows_body(rows);
}
STEPFORGE_SIMD_CLONES void backward_rows(const BackwardRows<BFloat16>& rows) {
  backward_rows_body(rows);
}

template <typename T>
void forward(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out,
             const at::Tensor& rstd) {
  const int64_t width = x.size(1);
  const T* x_data = x.const_data_ptr<T>();
  const float* weight_data = weight.const_data_ptr<float>();
  T* out_data = out.mutable_data_ptr<T>();
  float* rstd_data = rstd.mutable_data_ptr<float>();
  at::parallel_for(0, x.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    forward_rows(x_data + begin * width, weight_data, static_cast<float>(eps), out_data + begin * width,
                 rstd_data + begin, end - begin, width);
  });
}

template <typename T>
void backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
              const at::Tensor& rstd, const at::Tensor& residual_grad, const at::Tensor& grad_x,
              const at::Tensor& partials, int64_t block) {
  const int64_t width = x.size(1);
  const BackwardRows<T> all = {
      .grad_out = grad_out.const_data_ptr<T>(),
      .x = x.const_data_ptr<T>(),
      .weight = weight.const_data_ptr<float>(),
      .rstd = rstd.const_data_ptr<float>(),
      .residual_grad = residual_grad.defined() ? residual_grad.const_data_ptr<T>() : nullptr,
      .grad_x = grad_x.mutable_data_ptr<T>(),
      .partial = partials.mutable_data_ptr<float>(),
      .rows = x.size(0),
      .width = width,
  };
  at::parallel_for(0, partials.size(0), 1, [&](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      const int64_t begin = index * block;
      BackwardRows<T> part = all;
      part.grad_out += begin * width;
      part.x += begin * width;
      part.rstd += begin;
      if (part.residual_grad != nullptr) part.residual_grad += begin * width;
      part.grad_x += begin * width;
      part.partial += index * width;
      part.rows = std::min(block, all.rows - begin);
      backward_rows(part);
    }
  });
}

}  // namespace

void rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out,
                      const at::Tensor& rstd, double offset) {
  const at::Tensor wide_weight = norm_scale(weight, offset, at::kFloat);
  if (x.scalar_type() == at::kFloat) {
    forward<float>(x, wide_weight, eps, out, rstd);
  } else {
    forward<BFloat16>(x, wide_weight, eps, out, rstd);
  }
}

void rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor& residual_grad, const at::Tensor& grad_x,
                       const at::Tensor& grad_weight, double offset) {
  const at::Tensor wide_weight = norm_scale(weight, offset, at::kFloat);
  const int64_t block = rows_per_partial(x.size(0));
  const at::Tensor partials = at::empty({(x.size(0) + block - 1) / block, x.size(1)}, rstd.options());
  if (x.scalar_type() == at::kFloat) {
    backward<float>(grad_out, x, wide_weight, rstd, residual_grad, grad_x, partials, block);
  } else {
    backward<BFloat16>(grad_out, x, wide_weight, rstd, residual_grad, grad_x, partials, block);
  }
  reduce_rows(partials.const_data_ptr<float>(), partials.size(0), x.size(1), x.size(1),
              grad_weight.mutable_data_ptr<float>());
}

}  // namespace stepforge::cpu
