// SPDX-License-Identifier: Apache-2.0
// The gradient of the sinks of attention on the CPU. One thread sums a head, in the order of its queries.
#include <cmath>

#include <ATen/Parallel.h>

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

template <typename T>
STEPFORGE_INLINE float sink_dot_body(const T* a, const T* b, int64_t count) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += load(a + i) * load(b + i);
  return sum;
}
STEPFORGE_SIMD_CLONES float sink_dot(const float* a, const float* b, int64_t count) {
  return sink_dot_body(a, b, count);
}
STEPFORGE_SIMD_CLONES float sink_dot(const BFloat16* a, const BFloat16* b, int64_t count) {
  return sink_dot_body(a, b, count);
}

template <typename T>
void sink_gradient(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& lse,
                   const at::Tensor& sinks, const AttentionShape& shape,
                   std::span<const AttentionRange> ranges, const at::Tensor& grad_sinks) {
  const auto* log_sums = lse.const_data_ptr<float>();
  const auto* sink = sinks.const_data_ptr<float>();
  auto* target = grad_sinks.mutable_data_ptr<float>();
  at::parallel_for(0, shape.heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t head = first; head < last; ++head) {
      double sum = 0.0;
      for (const AttentionRange& range : ranges) {
        for (int64_t row = range.query_begin; row < range.query_begin + range.queries; ++row) {
          const float share = std::exp(sink[head] - log_sums[row * shape.heads + head]);
          sum += share * sink_dot(head_of<T>(grad_out, row, head, shape.value_size()),
                                  head_of<T>(out, row, head, shape.value_size()), shape.value_size());
        }
      }
      target[head] = static_cast<float>(-sum);
    }
  });
}

}  // namespace

void attention_sink_gradient(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& lse,
                             const at::Tensor& sinks, const AttentionShape& shape,
                             std::span<const AttentionRange> ranges, const at::Tensor& grad_sinks) {
  if (out.scalar_type() == at::kFloat) {
    sink_gradient<float>(grad_out, out, lse, sinks, shape, ranges, grad_sinks);
  } else {
    sink_gradient<BFloat16>(grad_out, out, lse, sinks, shape, ranges, grad_sinks);
  }
}

}  // namespace stepforge::cpu
