// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/expert_bias.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

/// Columns that a thread sums at a time.
constexpr int64_t kBiasColumns = 256;

template <typename T>
STEPFORGE_INLINE void add_scaled_body(T* row, const float* bias, float factor, int64_t width) {
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) store(row + d, load(row + d) + factor * bias[d]);
}
template <typename T>
STEPFORGE_INLINE void sum_scaled_body(const T* row, float factor, float* sum, int64_t width) {
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) sum[d] += factor * load(row + d);
}
template <typename T>
STEPFORGE_INLINE float bias_dot_body(const T* row, const float* bias, int64_t width) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < width; ++d) sum += load(row + d) * bias[d];
  return sum;
}

STEPFORGE_SIMD_CLONES void add_scaled(float* row, const float* bias, float factor, int64_t width) {
  add_scaled_body(row, bias, factor, width);
}
STEPFORGE_SIMD_CLONES void add_scaled(BFloat16* row, const float* bias, float factor, int64_t width) {
  add_scaled_body(row, bias, factor, width);
}
STEPFORGE_SIMD_CLONES void sum_scaled(const float* row, float factor, float* sum, int64_t width) {
  sum_scaled_body(row, factor, sum, width);
}
STEPFORGE_SIMD_CLONES void sum_scaled(const BFloat16* row, float factor, float* sum, int64_t width) {
  sum_scaled_body(row, factor, sum, width);
}
STEPFORGE_SIMD_CLONES float bias_dot(const float* row, const float* bias, int64_t width) {
  return bias_dot_body(row, bias, width);
}
STEPFORGE_SIMD_CLONES float bias_dot(const BFloat16* row, const float* bias, int64_t width) {
  return bias_dot_body(row, bias, width);
}

/// The factor of a row.
class FactorOfRow {
 public:
  explicit FactorOfRow(const RowFactors& factors)
      : weights_(factors.weights.defined() ? factors.weights.const_data_ptr<float>() : nullptr),
        slots_(factors.weights.defined() ? factors.slots.const_data_ptr<int32_t>() : nullptr) {}
  float operator()(int64_t row) const { return weights_ == nullptr ? 1.0F : weights_[slots_[row]]; }

 private:
  const float* weights_;
  const int32_t* slots_;
};

/// Calls body(row, expert) for all rows, on several threads.
template <typename Body>
void for_each_row(std::span<const int64_t> offsets, int64_t width, const Body& body) {
  at::parallel_for(0, offsets.back(), rows_per_task(width), [&](int64_t begin, int64_t end) {
    auto expert = std::upper_bound(offsets.begin(), offsets.end(), begin) - offsets.begin() - 1;
    for (int64_t row = begin; row < end; ++row) {
      while (row >= offsets[static_cast<size_t>(expert) + 1]) ++expert;
      body(row, expert);
    }
  });
}

template <typename T>
void add_bias_of_experts(const at::Tensor& rows, std::span<const int64_t> offsets, const float* bias,
                         const FactorOfRow& factor) {
  const int64_t width = rows.size(1);
  const int64_t stride = rows.stride(0);
  T* data = rows.mutable_data_ptr<T>();
  for_each_row(offsets, width, [&](int64_t row, int64_t expert) {
    add_scaled(data + row * stride, bias + expert * width, factor(row), width);
  });
}

template <typename T>
void sum_by_expert(const at::Tensor& grad, std::span<const int64_t> offsets, const FactorOfRow& factor,
                   float* sums) {
  const int64_t width = grad.size(1);
  const int64_t parts = (width + kBiasColumns - 1) / kBiasColumns;
  const auto experts = static_cast<int64_t>(offsets.size()) - 1;
  const int64_t stride = grad.stride(0);
  const T* data = grad.const_data_ptr<T>();
  at::parallel_for(0, experts * parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const auto expert = static_cast<size_t>(task / parts);
      const int64_t column = task % parts * kBiasColumns;
      const int64_t columns = std::min(kBiasColumns, width - column);
      float* sum = sums + static_cast<int64_t>(expert) * width + column;
      std::fill_n(sum, columns, 0.0F);
      for (int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row)
        sum_scaled(data + row * stride + column, factor(row), sum, columns);
    }
  });
}

template <typename T>
void add_dots(const at::Tensor& grad, std::span<const int64_t> offsets, const float* bias,
              const int32_t* slots, float* grad_weights) {
  const int64_t width = grad.size(1);
  const int64_t stride = grad.stride(0);
  const T* data = grad.const_data_ptr<T>();
  for_each_row(offsets, width, [&](int64_t row, int64_t expert) {
    grad_weights[slots[row]] += bias_dot(data + row * stride, bias + expert * width, width);
  });
}

}  // namespace

void add_expert_bias(const at::Tensor& rows, std::span<const int64_t> offsets, const at::Tensor& bias,
                     const RowFactors& factors) {
  if (rows.scalar_type() == at::kFloat) {
    add_bias_of_experts<float>(rows, offsets, bias.const_data_ptr<float>(), FactorOfRow(factors));
  } else {
    add_bias_of_experts<BFloat16>(rows, offsets, bias.const_data_ptr<float>(), FactorOfRow(factors));
  }
}

void expert_bias_gradient(const at::Tensor& grad, std::span<const int64_t> offsets, const RowFactors& factors,
                          const at::Tensor& grad_bias) {
  if (grad.scalar_type() == at::kFloat) {
    sum_by_expert<float>(grad, offsets, FactorOfRow(factors), grad_bias.mutable_data_ptr<float>());
  } else {
    sum_by_expert<BFloat16>(grad, offsets, FactorOfRow(factors), grad_bias.mutable_data_ptr<float>());
  }
}

void add_factor_gradients(const at::Tensor& grad, std::span<const int64_t> offsets, const at::Tensor& bias,
                          const at::Tensor& slots, const at::Tensor& grad_weights) {
  const auto* slot = slots.const_data_ptr<int32_t>();
  auto* target = grad_weights.mutable_data_ptr<float>();
  if (grad.scalar_type() == at::kFloat) {
    add_dots<float>(grad, offsets, bias.const_data_ptr<float>(), slot, target);
  } else {
    add_dots<BFloat16>(grad, offsets, bias.const_data_ptr<float>(), slot, target);
  }
}

}  // namespace stepforge::cpu
