// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/cross_entropy.h"
#include "stepforge/cuda/cross_entropy_row.h"

namespace stepforge::cuda {

namespace {

constexpr int kCapThreads = 256;

/// Reads a row twice: for its statistics, in one sweep, and for its gradient.
template <typename T, int kCount>
__global__ void __launch_bounds__(kLossThreads)
    whole_rows(T* logits, const int64_t* labels, int64_t rows, int64_t width, LossGradient gradient,
               float* token_loss) {
  __shared__ WarpValues<float> maxima;
  __shared__ WarpValues<double> of_warps;
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    T* const row = logits + n * width;
    const Label label = label_of(labels[n], width, 0, width);
    if (label.is_ignored) {
      if (threadIdx.x == 0) token_loss[n] = 0.0F;
      if (gradient.scale != nullptr) write_zeros<kCount>(row, width);
      continue;
    }
    const bool smooth = gradient.smoothing > 0.0;
    RunningSums running;
    for (int64_t v = threadIdx.x * kCount; v < width; v += blockDim.x * kCount) {
      float values[kCount];
      load(row + v, values);
      running.add(values, smooth);
    }
    const float largest = join_in_block(running.largest, Largest(), -FLT_MAX, maxima);
    running.raise(largest);
    const double sum = join_in_block(running.sums.exponentials, Sum(), 0.0, of_warps);
    const double total = smooth ? join_in_block(running.sums.logits, Sum(), 0.0, of_warps) : 0.0;
    if (threadIdx.x == 0) {
      const double expected = expected_logit(row, width, label, largest, gradient.smoothing, total, width);
      token_loss[n] = static_cast<float>(log(sum) - expected);
    }
    if (gradient.scale == nullptr) continue;
    const RowGradient of_row(gradient, n, label, largest, sum, width);
    __syncthreads();  // the loss reads the logit of the label
    of_row.template write<kCount>(row, width);
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kLossThreads)
    maxima_of_rows(const T* logits, int64_t rows, int64_t width, float* largest) {
  __shared__ WarpValues<float> maxima;
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    float own = -INFINITY;
    for (int64_t v = threadIdx.x * kCount; v < width; v += blockDim.x * kCount) {
      float values[kCount];
      load(logits + n * width + v, values);
      for (int i = 0; i < kCount; ++i) own = fmaxf(own, values[i]);
    }
    own = join_in_block(own, Largest(), -INFINITY, maxima);
    if (threadIdx.x == 0) largest[n] = own;
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kLossThreads)
    terms_of_rows(const T* logits, const int64_t* labels, int64_t rows, int64_t width, int64_t begin,
                  int64_t tokens, const float* largest, double smoothing, double* terms) {
  __shared__ WarpValues<double> of_warps;
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    const T* const row = logits + n * width;
    RunningSums running;
    running.largest = largest[n];
    for (int64_t v = threadIdx.x * kCount; v < width; v += blockDim.x * kCount) {
      float values[kCount];
      load(row + v, values);
      running.add(values, smoothing > 0.0);
    }
    const double sum = join_in_block(running.sums.exponentials, Sum(), 0.0, of_warps);
    const double total = smoothing > 0.0 ? join_in_block(running.sums.logits, Sum(), 0.0, of_warps) : 0.0;
    if (threadIdx.x != 0) continue;
    const Label label = label_of(labels[n], width, begin, tokens);
    terms[n] = sum;
    terms[rows + n] = expected_logit(row, width, label, largest[n], smoothing, total, tokens);
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kLossThreads)
    losses_of_rows(T* logits, const int64_t* labels, int64_t rows, int64_t width, int64_t begin,
                   int64_t tokens, const float* largest, const double* terms, LossGradient gradient,
                   float* token_loss) {
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    T* const row = logits + n * width;
    const Label label = label_of(labels[n], width, begin, tokens);
    if (threadIdx.x == 0)
      token_loss[n] = label.is_ignored ? 0.0F : static_cast<float>(log(terms[n]) - terms[rows + n]);
    if (gradient.scale == nullptr) continue;
    if (label.is_ignored) {
      write_zeros<kCount>(row, width);
    } else {
      RowGradient(gradient, n, label, largest[n], terms[n], tokens).template write<kCount>(row, width);
    }
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kCapThreads) cap_elements(T* logits, int64_t elements, float cap) {
  const float inverse = 1.0F / cap;
  for (int64_t i = thread_of_grid() * kCount; i < elements; i += threads_of_grid() * kCount) {
    float values[kCount];
    load(logits + i, values);
    for (int k = 0; k < kCount; ++k) values[k] = cap * tanhf(values[k] * inverse);
    store(values, logits + i);
  }
}

int64_t tokens_of(const VocabularyPart& part, int64_t width) {
  return part.size > 0 ? part.size : width;
}

}  // namespace

void cross_entropy(DType type, void* logits, const int64_t* labels, int64_t rows, int64_t width,
                   const LossGradient& gradient, float* token_loss, Stream stream) {
  with_elements(type, width, {logits}, [&]<typename T, int kCount>() {
    const auto kernel = whole_rows<T, kCount>;
    LAUNCH(kernel, blocks_for(rows), threads_for(width / kCount, kLossThreads), stream,
           static_cast<T*>(logits), labels, rows, width, gradient, token_loss);
  });
}

void cap_logits(DType type, void* logits, int64_t elements, double cap, Stream stream) {
  with_elements(type, elements, {logits}, [&]<typename T, int kCount>() {
    const auto kernel = cap_elements<T, kCount>;
    LAUNCH(kernel, blocks_for(elements / kCount, kCapThreads), kCapThreads, stream, static_cast<T*>(logits),
           elements, static_cast<float>(cap));
  });
}

void part_maxima(DType type, const void* logits, int64_t rows, int64_t width, float* largest, Stream stream) {
  with_elements(type, width, {logits}, [&]<typename T, int kCount>() {
    const auto kernel = maxima_of_rows<T, kCount>;
    LAUNCH(kernel, blocks_for(rows), threads_for(width / kCount, kLossThreads), stream,
           static_cast<const T*>(logits), rows, width, largest);
  });
}

void part_terms(DType type, const void* logits, const int64_t* labels, int64_t rows, int64_t width,
                const VocabularyPart& part, const float* largest, double smoothing, double* terms,
                Stream stream) {
  with_elements(type, width, {logits}, [&]<typename T, int kCount>() {
    const auto kernel = terms_of_rows<T, kCount>;
    LAUNCH(kernel, blocks_for(rows), threads_for(width / kCount, kLossThreads), stream,
           static_cast<const T*>(logits), labels, rows, width, part.begin, tokens_of(part, width), largest,
           smoothing, terms);
  });
}

void part_losses(DType type, void* logits, const int64_t* labels, int64_t rows, int64_t width,
                 const VocabularyPart& part, const float* largest, const double* terms,
                 const LossGradient& gradient, float* token_loss, Stream stream) {
  with_elements(type, width, {logits}, [&]<typename T, int kCount>() {
    const auto kernel = losses_of_rows<T, kCount>;
    LAUNCH(kernel, blocks_for(rows), threads_for(width / kCount, kLossThreads), stream,
           static_cast<T*>(logits), labels, rows, width, part.begin, tokens_of(part, width), largest, terms,
           gradient, token_loss);
  });
}

}  // namespace stepforge::cuda
