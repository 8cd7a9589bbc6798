// SPDX-License-Identifier: Apache-2.0
// Attention of a few new queries against a cache of keys and values. Bound by reading the cache, not by
// arithmetic. A task is one row and one query head.
#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/empty.h>

#include "stepforge/kernels/cpu/attention_blocks.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

/// One query head against `length` cache entries, whose keys are `key_stride` elements apart.
template <typename T>
struct CachedQuery {
  const T* query;
  const T* keys;
  const T* values;
  int64_t key_stride;
  int64_t value_stride;
  int64_t length;
  int64_t dim;
  int64_t value_dim;
  float scale;
  float cap;
  const float* sink;    ///< null if there is none
  float* scores;        ///< scratch [length]
  float* weighted_sum;  ///< scratch [value_dim]
  T* out;
};

template <typename T>
STEPFORGE_INLINE void attend_body(const CachedQuery<T>& query) {
  const CachedQuery<T> q = query;
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t u = 0; u < q.length; ++u) {
    const T* key = q.keys + u * q.key_stride;
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < q.dim; ++i) sum += load(q.query + i) * load(key + i);
    q.scores[u] = sum * q.scale;
    largest = largest < q.scores[u] ? q.scores[u] : largest;
  }
  if (q.cap > 0.0F) {
    const float inverse = 1.0F / q.cap;
#pragma omp simd
    for (int64_t u = 0; u < q.length; ++u) q.scores[u] = q.cap * tanh_approx(q.scores[u] * inverse);
    largest = q.cap * tanh_approx(largest * inverse);
  }
  if (q.sink != nullptr) largest = std::max(largest, *q.sink);
  const float unseen = q.sink != nullptr ? exp_approx(*q.sink - largest) : 0.0F;
  float total = 0.0F;
#pragma omp simd reduction(+ : total)
  for (int64_t u = 0; u < q.length; ++u) {
    q.scores[u] = exp_approx(q.scores[u] - largest);
    total += q.scores[u];
  }
  for (int64_t i = 0; i < q.value_dim; ++i) q.weighted_sum[i] = 0.0F;
  for (int64_t u = 0; u < q.length; ++u) {
    const T* value = q.values + u * q.value_stride;
    const float weight = q.scores[u];
#pragma omp simd
    for (int64_t i = 0; i < q.value_dim; ++i) q.weighted_sum[i] += weight * load(value + i);
  }
  const float factor = 1.0F / (total + unseen);
#pragma omp simd
  for (int64_t i = 0; i < q.value_dim; ++i) store(q.out + i, q.weighted_sum[i] * factor);
}

STEPFORGE_SIMD_CLONES void attend(const CachedQuery<float>& query) {
  attend_body(query);
}
STEPFORGE_SIMD_CLONES void attend(const CachedQuery<BFloat16>& query) {
  attend_body(query);
}

template <typename T>
void cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
            std::span<const int64_t> past_lengths, const AttentionShape& shape, const at::Tensor& out,
            const at::Tensor& sinks) {
  const int64_t chunk = q.size(1);
  const int64_t capacity = k_cache.size(1);
  const int64_t tasks = q.size(0) * shape.heads;
  const int64_t slots = task_slots(tasks);
  const at::Tensor memory =
      at::empty({slots, round_up(capacity + shape.value_size(), kColumnUnit)}, at::kFloat);
  const T* queries = q.const_data_ptr<T>();
  const T* keys = k_cache.const_data_ptr<T>();
  const T* values = v_cache.const_data_ptr<T>();
  const float* sink_of_head = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr;
  T* target = out.mutable_data_ptr<T>();
  float* scratch = memory.mutable_data_ptr<float>();
  parallel_tasks(tasks, slots, [&](int64_t task, int64_t slot) {
    const int64_t row = task / shape.heads;
    const int64_t head = task % shape.heads;
    const int64_t kv_head = head / shape.group();
    for (int64_t t = 0; t < chunk; ++t) {
      const int64_t query = row * chunk + t;
      const int64_t length = past_lengths[static_cast<size_t>(row)] + t + 1;
      const int64_t seen = shape.window == 0 ? length : std::min(length, shape.window);
      const int64_t first = row * capacity + length - seen;
      attend(CachedQuery<T>{.query = queries + query * shape.q_width() + head * shape.head_dim,
                            .keys = keys + first * shape.k_width() + kv_head * shape.head_dim,
                            .values = values + first * shape.v_width() + kv_head * shape.value_size(),
                            .key_stride = shape.k_width(),
                            .value_stride = shape.v_width(),
                            .length = seen,
                            .dim = shape.head_dim,
                            .value_dim = shape.value_size(),
                            .scale = static_cast<float>(shape.scale),
                            .cap = static_cast<float>(shape.cap),
                            .sink = sink_of_head != nullptr ? sink_of_head + head : nullptr,
                            .scores = scratch + slot * memory.size(1),
                            .weighted_sum = scratch + slot * memory.size(1) + capacity,
                            .out = target + query * shape.out_width() + head * shape.value_size()});
    }
  });
}

}  // namespace

void attention_cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                      std::span<const int64_t> past_lengths, const AttentionShape& shape,
                      const at::Tensor& out, const at::Tensor& sinks) {
  if (q.scalar_type() == at::kFloat) {
    cached<float>(q, k_cache, v_cache, past_lengths, shape, out, sinks);
  } else {
    cached<BFloat16>(q, k_cache, v_cache, past_lengths, shape, out, sinks);
  }
}

}  // namespace stepforge::cpu
