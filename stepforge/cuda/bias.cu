// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/bias.h"
#include "stepforge/cuda/elements.h"

namespace stepforge::cuda {

namespace {

constexpr int kBiasThreads = 256;

template <typename T, typename W, int kCount>
__global__ void __launch_bounds__(kBiasThreads) add_bias(T* x, const W* bias, int64_t rows, int64_t width) {
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    for (int64_t d = threadIdx.x * kCount; d < width; d += blockDim.x * kCount) {
      float values[kCount];
      float addends[kCount];
      load(x + n * width + d, values);
      load(bias + d, addends);
      for (int i = 0; i < kCount; ++i) values[i] += addends[i];
      store(values, x + n * width + d);
    }
  }
}

/// A block sums a part of the rows; a thread the same columns of each.
template <typename T, int kCount>
__global__ void __launch_bounds__(kBiasThreads)
    sum_part(const T* grad, int64_t rows, int64_t width, int64_t rows_of_block, float* partials) {
  const int64_t begin = blockIdx.x * rows_of_block;
  const int64_t end = begin + rows_of_block < rows ? begin + rows_of_block : rows;
  for (int64_t d = threadIdx.x * kCount; d < width; d += blockDim.x * kCount) {
    float sums[kCount] = {};
    for (int64_t n = begin; n < end; ++n) {
      float values[kCount];
      load(grad + n * width + d, values);
      for (int i = 0; i < kCount; ++i) sums[i] += values[i];
    }
    store(sums, partials + blockIdx.x * width + d);
  }
}

}  // namespace

void bias_forward(DType type, void* x, DType bias_type, const void* bias, int64_t rows, int64_t width,
                  Stream stream) {
  with_elements(type, width, {x, bias}, [&]<typename T, int kCount>() {
    with_weight<T>(bias_type, [&]<typename W>() {
      const auto kernel = add_bias<T, W, kCount>;
      LAUNCH(kernel, blocks_for(rows), threads_for(width / kCount, kBiasThreads), stream, static_cast<T*>(x),
             static_cast<const W*>(bias), rows, width);
    });
  });
}

void bias_backward(DType type, const void* grad, int64_t rows, int64_t width, float* grad_bias,
                   float* workspace, Stream stream) {
  with_elements(type, width, {grad, workspace}, [&]<typename T, int kCount>() {
    if (rows == 0) return;
    const auto kernel = sum_part<T, kCount>;
    LAUNCH(kernel, static_cast<unsigned>(parts_of(rows)), threads_for(width / kCount, kBiasThreads), stream,
           static_cast<const T*>(grad), rows, width, rows_of_part(rows), workspace);
  });
  sum_columns(workspace, parts_of(rows), width, width, grad_bias, stream);
}

}  // namespace stepforge::cuda
