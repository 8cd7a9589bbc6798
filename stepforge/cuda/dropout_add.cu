// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/random.h"
#include "stepforge/cuda/dropout_add.h"
#include "stepforge/cuda/elements.h"

namespace stepforge::cuda {

namespace {

constexpr int kDropoutThreads = 256;
constexpr int kQuad = 4;  // elements that share a draw

/// A thread has kCount elements of four that share a draw: all of them, or each by itself.
template <typename T, int kCount>
__global__ void __launch_bounds__(kDropoutThreads)
    drop(Dropout dropout, uint32_t threshold, float scale, const T* x, const T* residual, T* out) {
  for (int64_t n = blockIdx.x; n < dropout.rows; n += gridDim.x) {
    for (int64_t c = threadIdx.x * kCount; c < dropout.width; c += blockDim.x * kCount) {
      const int64_t at = n * dropout.width + c;
      float values[kCount];
      load(x + at, values);
      if (dropout.p > 0.0) {
        const uint64_t position = static_cast<uint32_t>(dropout.positions[n]);
        const int64_t channel = dropout.channel + c;
        const auto words = philox(dropout.key, (position << 32) | static_cast<uint64_t>(channel / kQuad),
                                  static_cast<uint64_t>(dropout.row_ids[n]));
        for (int i = 0; i < kCount; ++i)
          values[i] *= words[kCount == kQuad ? i : channel % kQuad] >= threshold ? scale : 0.0F;
      }
      if (residual != nullptr) {
        float base[kCount];
        load(residual + at, base);
        for (int i = 0; i < kCount; ++i) values[i] += base[i];
      }
      store(values, out + at);
    }
  }
}

template <typename T>
void launch(const Dropout& dropout, const T* x, const T* residual, T* out, Stream stream) {
  const auto threshold = static_cast<uint32_t>(dropout.p * 0x1.0p32);
  const auto scale = static_cast<float>(1.0 / (1.0 - dropout.p));
  const auto run = [&](auto kernel, int count) {
    LAUNCH(kernel, blocks_for(dropout.rows), threads_for(dropout.width / count, kDropoutThreads), stream,
           dropout, threshold, scale, x, residual, out);
  };
  if (dropout.width % kQuad == 0 && dropout.channel % kQuad == 0 && are_aligned({x, residual, out})) {
    run(drop<T, kQuad>, kQuad);
  } else {
    run(drop<T, 1>, 1);
  }
}

}  // namespace

void dropout_add_forward(const Dropout& dropout, const void* x, const void* residual, void* out,
                         Stream stream) {
  with_type(dropout.type, [&]<typename T>() {
    launch(dropout, static_cast<const T*>(x), static_cast<const T*>(residual), static_cast<T*>(out), stream);
  });
}

void dropout_add_backward(const Dropout& dropout, const void* grad_out, void* grad_x, Stream stream) {
  with_type(dropout.type, [&]<typename T>() {
    const T* const no_residual = nullptr;
    launch(dropout, static_cast<const T*>(grad_out), no_residual, static_cast<T*>(grad_x), stream);
  });
}

}  // namespace stepforge::cuda
