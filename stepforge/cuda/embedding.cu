// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/elements.h"
#include "stepforge/cuda/embedding.h"

namespace stepforge::cuda {

namespace {

constexpr int kEmbeddingThreads = 256;
constexpr int32_t kNoEmbedding = -1;

template <typename T, int kCount>
__global__ void __launch_bounds__(kEmbeddingThreads)
    read_rows(const int32_t* tokens, int64_t count, EmbeddingTable table, const T* weight, T* out) {
  const int64_t vocabulary = table.vocabulary > 0 ? table.vocabulary : table.rows;
  for (int64_t n = blockIdx.x; n < count; n += gridDim.x) {
    const int64_t row = tokens[n] - table.begin;
    const bool is_here = row >= 0 && row < table.rows;
    const bool is_valid = tokens[n] >= kNoEmbedding && tokens[n] < vocabulary;
    for (int64_t d = threadIdx.x * kCount; d < table.width; d += blockDim.x * kCount) {
      float values[kCount] = {};
      if (is_here) load(weight + row * table.width + d, values);
      for (int i = 0; i < kCount; ++i)
        values[i] = is_valid ? values[i] * static_cast<float>(table.factor) : NAN;
      store(values, out + n * table.width + d);
    }
  }
}

/// Block i has the token that is at place i of the order, if it is the token's first place.
template <typename T, int kCount>
__global__ void __launch_bounds__(kEmbeddingThreads)
    add_segments(const int32_t* tokens, const int32_t* order, int64_t count, EmbeddingTable table,
                 const T* grad_out, float* grad_weight) {
  for (int64_t first = blockIdx.x; first < count; first += gridDim.x) {
    const int32_t token = tokens[order[first]];
    const int64_t row = token - table.begin;
    if (row < 0 || row >= table.rows) continue;
    if (first > 0 && tokens[order[first - 1]] == token) continue;
    for (int64_t d = threadIdx.x * kCount; d < table.width; d += blockDim.x * kCount) {
      float sums[kCount];
      load(grad_weight + row * table.width + d, sums);
      for (int64_t i = first; i < count && tokens[order[i]] == token; ++i) {
        float grads[kCount];
        load(grad_out + order[i] * table.width + d, grads);
        for (int k = 0; k < kCount; ++k) sums[k] += static_cast<float>(table.factor) * grads[k];
      }
      store(sums, grad_weight + row * table.width + d);
    }
  }
}

template <int kCount>
__global__ void __launch_bounds__(kEmbeddingThreads) clear(float* values, int64_t elements) {
  const float zeros[kCount] = {};
  for (int64_t i = thread_of_grid() * kCount; i < elements; i += threads_of_grid() * kCount)
    store(zeros, values + i);
}

}  // namespace

void embedding_forward(DType type, const int32_t* tokens, int64_t count, const EmbeddingTable& table,
                       const void* weight, void* out, Stream stream) {
  with_elements(type, table.width, {weight, out}, [&]<typename T, int kCount>() {
    const auto kernel = read_rows<T, kCount>;
    LAUNCH(kernel, blocks_for(count), threads_for(table.width / kCount, kEmbeddingThreads), stream, tokens,
           count, table, static_cast<const T*>(weight), static_cast<T*>(out));
  });
}

void embedding_backward(DType type, const int32_t* tokens, const int32_t* order, int64_t count,
                        const EmbeddingTable& table, const void* grad_out, float* grad_weight,
                        bool accumulate, Stream stream) {
  const int64_t elements = table.rows * table.width;
  with_elements(type, table.width, {grad_out, grad_weight}, [&]<typename T, int kCount>() {
    if (!accumulate) {
      const auto kernel = clear<kCount>;
      LAUNCH(kernel, blocks_for(elements / kCount, kEmbeddingThreads), kEmbeddingThreads, stream, grad_weight,
             elements);
    }
    const auto kernel = add_segments<T, kCount>;
    LAUNCH(kernel, blocks_for(count), threads_for(table.width / kCount, kEmbeddingThreads), stream, tokens,
           order, count, table, static_cast<const T*>(grad_out), grad_weight);
  });
}

}  // namespace stepforge::cuda
