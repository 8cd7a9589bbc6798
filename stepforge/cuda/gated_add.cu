// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/block_join.h"
#include "stepforge/cuda/elements.h"
#include "stepforge/cuda/gated_add.h"

namespace stepforge::cuda {

namespace {

constexpr int kGateThreads = 256;

__device__ float open_of(float gate) {
  return 1.0F / (1.0F + expf(-gate));
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kGateThreads)
    add_gated(const T* x, const T* y, const float* gate, int64_t rows, int64_t width, T* out) {
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    const float open = open_of(gate[n]);
    for (int64_t d = threadIdx.x * kCount; d < width; d += blockDim.x * kCount) {
      float values[kCount];
      float addends[kCount];
      load(x + n * width + d, values);
      load(y + n * width + d, addends);
      for (int i = 0; i < kCount; ++i) values[i] += open * addends[i];
      store(values, out + n * width + d);
    }
  }
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kGateThreads)
    gated_gradients(const T* grad_out, const T* y, const float* gate, int64_t rows, int64_t width, T* grad_y,
                    float* grad_gate) {
  __shared__ WarpValues<float> of_warps;
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    const float open = open_of(gate[n]);
    float sum = 0.0F;
    for (int64_t d = threadIdx.x * kCount; d < width; d += blockDim.x * kCount) {
      float grads[kCount];
      float values[kCount];
      load(grad_out + n * width + d, grads);
      load(y + n * width + d, values);
      for (int i = 0; i < kCount; ++i) {
        sum += grads[i] * values[i];
        grads[i] *= open;
      }
      store(grads, grad_y + n * width + d);
    }
    sum = join_in_block(sum, Sum(), 0.0F, of_warps);
    if (threadIdx.x == 0) grad_gate[n] = open * (1.0F - open) * sum;
  }
}

}  // namespace

void gated_add_forward(DType type, const void* x, const void* y, const float* gate, int64_t rows,
                       int64_t width, void* out, Stream stream) {
  with_elements(type, width, {x, y, out}, [&]<typename T, int kCount>() {
    const auto kernel = add_gated<T, kCount>;
    LAUNCH(kernel, blocks_for(rows), threads_for(width / kCount, kGateThreads), stream,
           static_cast<const T*>(x), static_cast<const T*>(y), gate, rows, width, static_cast<T*>(out));
  });
}

void gated_add_backward(DType type, const void* grad_out, const void* y, const float* gate, int64_t rows,
                        int64_t width, void* grad_y, float* grad_gate, Stream stream) {
  with_elements(type, width, {grad_out, y, grad_y}, [&]<typename T, int kCount>() {
    const auto kernel = gated_gradients<T, kCount>;
    LAUNCH(kernel, blocks_for(rows), threads_for(width / kCount, kGateThreads), stream,
           static_cast<const T*>(grad_out), static_cast<const T*>(y), gate, rows, width,
           static_cast<T*>(grad_y), grad_gate);
  });
}

}  // namespace stepforge::cuda
