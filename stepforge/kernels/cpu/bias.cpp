// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/bias.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

template <typename T>
STEPFORGE_INLINE void add_bias_body(T* x, const float* bias, int64_t rows, int64_t width) {
  for (int64_t n = 0; n < rows; ++n) {
    T* row = x + n * width;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) store(row + d, load(row + d) + bias[d]);
  }
}

template <typename T>
STEPFORGE_INLINE void sum_rows_body(const T* grad, float* sum, int64_t rows, int64_t width) {
  for (int64_t d = 0; d < width; ++d) sum[d] = 0.0F;
  for (int64_t n = 0; n < rows; ++n) {
    const T* row = grad + n * width;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) sum[d] += load(row + d);
  }
}

STEPFORGE_SIMD_CLONES void add_bias(float* x, const float* bias, int64_t rows, int64_t width) {
  add_bias_body(x, bias, rows, width);
}
STEPFORGE_SIMD_CLONES void add_bias(BFloat16* x, const float* bias, int64_t rows, int64_t width) {
  add_bias_body(x, bias, rows, width);
}
STEPFORGE_SIMD_CLONES void sum_rows(const float* grad, float* sum, int64_t rows, int64_t width) {
  sum_rows_body(grad, sum, rows, width);
}
STEPFORGE_SIMD_CLONES void sum_rows(const BFloat16* grad, float* sum, int64_t rows, int64_t width) {
  sum_rows_body(grad, sum, rows, width);
}

template <typename T>
void forward(const at::Tensor& x, const float* bias) {
  const int64_t width = x.size(1);
  T* data = x.mutable_data_ptr<T>();
  at::parallel_for(0, x.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    add_bias(data + begin * width, bias, end - begin, width);
  });
}

/// partials: [parts, width], one row per `block` tokens.
template <typename T>
void backward(const at::Tensor& grad, const at::Tensor& partials, int64_t block) {
  const int64_t width = grad.size(1);
  const T* data = grad.const_data_ptr<T>();
  auto* sums = partials.mutable_data_ptr<float>();
  at::parallel_for(0, partials.size(0), 1, [&](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      const int64_t begin = index * block;
      sum_rows(data + begin * width, sums + index * width, std::min(block, grad.size(0) - begin), width);
    }
  });
}

}  // namespace

void bias_forward(const at::Tensor& x, const at::Tensor& bias) {
  const at::Tensor wide = bias.to(at::kFloat);
  const auto* values = wide.const_data_ptr<float>();
  if (x.scalar_type() == at::kFloat) {
    forward<float>(x, values);
  } else {
    forward<BFloat16>(x, values);
  }
}

void bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias) {
  const int64_t block = rows_per_partial(grad.size(0));
  const at::Tensor partials =
      at::empty({(grad.size(0) + block - 1) / block, grad.size(1)}, grad_bias.options());
  if (grad.scalar_type() == at::kFloat) {
    backward<float>(grad, partials, block);
  } else {
    backward<BFloat16>(grad, partials, block);
  }
  reduce_rows(partials.const_data_ptr<float>(), partials.size(0), grad.size(1), grad.size(1),
              grad_bias.mutable_data_ptr<float>());
}

}  // namespace stepforge::cpu
