// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/block_join.h"
#include "stepforge/cuda/elements.h"
#include "stepforge/cuda/rms_norm.h"

namespace stepforge::cuda {

namespace {

constexpr int kNormThreads = 256;

/// Factors of columns: offset + weight.
template <typename W>
struct Scale {
  const W* weight;
  float offset;

  template <int kCount>
  __device__ void read(int64_t column, float (&to)[kCount]) const {
    load(weight + column, to);
    for (int i = 0; i < kCount; ++i) to[i] += offset;
  }
};

template <typename T, typename W, int kCount>
__global__ void __launch_bounds__(kNormThreads)
    forward_rows(const T* x, Scale<W> scale, float eps, int64_t rows, int64_t width, T* out, float* rstd) {
  __shared__ WarpValues<float> of_warps;
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    const T* const row = x + n * width;
    float squares = 0.0F;
    for (int64_t d = threadIdx.x * kCount; d < width; d += blockDim.x * kCount) {
      float values[kCount];
      load(row + d, values);
      for (int i = 0; i < kCount; ++i) squares += values[i] * values[i];
    }
    squares = join_in_block(squares, Sum(), 0.0F, of_warps);
    const float factor = 1.0F / sqrtf(squares / static_cast<float>(width) + eps);
    if (threadIdx.x == 0) rstd[n] = factor;
    for (int64_t d = threadIdx.x * kCount; d < width; d += blockDim.x * kCount) {
      float values[kCount];
      float weights[kCount];
      load(row + d, values);
      scale.read(d, weights);
      for (int i = 0; i < kCount; ++i) values[i] = values[i] * factor * weights[i];
      store(values, out + n * width + d);
    }
  }
}

/// Pointers of the backward pass.
template <typename T, typename W>
struct BackwardRows {
  const T* grad_out;
  const T* x;
  Scale<W> scale;
  const float* rstd;
  const T* residual_grad;  ///< or null
  T* grad_x;
  float* partials;  ///< [parts, width]
  int64_t rows;
  int64_t width;
};

/// The sum over a row of grad_out * scale * x, in every thread of the block.
template <int kCount, typename T, typename W>
__device__ float dot_of_row(const BackwardRows<T, W>& r, int64_t n, WarpValues<float>& of_warps) {
  float dot = 0.0F;
  for (int64_t d = threadIdx.x * kCount; d < r.width; d += blockDim.x * kCount) {
    float grads[kCount];
    float values[kCount];
    float weights[kCount];
    load(r.grad_out + n * r.width + d, grads);
    load(r.x + n * r.width + d, values);
    r.scale.read(d, weights);
    for (int i = 0; i < kCount; ++i) dot += grads[i] * weights[i] * values[i];
  }
  return join_in_block(dot, Sum(), 0.0F, of_warps);
}

/// Writes the gradient of a row and adds its share of the weight's gradient to `sums`, [width]. A thread has the same columns
/// in every row, so nobody else touches its sums.
template <int kCount, typename T, typename W>
__device__ void write_row(const BackwardRows<T, W>& r, int64_t n, float dot, float* sums) {
  const float factor = r.rstd[n];
  const float pull = dot * factor * factor / static_cast<float>(r.width);
  for (int64_t d = threadIdx.x * kCount; d < r.width; d += blockDim.x * kCount) {
    const int64_t at = n * r.width + d;
    float grads[kCount];
    float values[kCount];
    float weights[kCount];
    float residual[kCount] = {};
    float own_sums[kCount];
    load(r.grad_out + at, grads);
    load(r.x + at, values);
    r.scale.read(d, weights);
    if (r.residual_grad != nullptr) load(r.residual_grad + at, residual);
    load(sums + d, own_sums);
    for (int i = 0; i < kCount; ++i) {
      own_sums[i] += grads[i] * values[i] * factor;
      grads[i] = factor * (grads[i] * weights[i] - values[i] * pull) + residual[i];
    }
    store(own_sums, sums + d);
    store(grads, r.grad_x + at);
  }
}

/// A block has a part of the rows. Sums of columns are in shared memory where they fit.
template <typename T, typename W, int kCount>
__global__ void __launch_bounds__(kNormThreads) backward_rows(BackwardRows<T, W> r, int64_t rows_of_block) {
  constexpr int kSharedColumns = 8192;
  __shared__ WarpValues<float> of_warps;
  __shared__ SharedArray<float, kSharedColumns> of_columns;
  float* const partial = r.partials + blockIdx.x * r.width;
  float* const sums = r.width <= kSharedColumns ? &of_columns[0] : partial;
  const float zeros[kCount] = {};
  for (int64_t d = threadIdx.x * kCount; d < r.width; d += blockDim.x * kCount) store(zeros, sums + d);
  const int64_t begin = blockIdx.x * rows_of_block;
  const int64_t end = begin + rows_of_block < r.rows ? begin + rows_of_block : r.rows;
  for (int64_t n = begin; n < end; ++n) write_row<kCount>(r, n, dot_of_row<kCount>(r, n, of_warps), sums);
  if (sums == partial) return;
  for (int64_t d = threadIdx.x * kCount; d < r.width; d += blockDim.x * kCount) {
    float own_sums[kCount];
    load(sums + d, own_sums);
    store(own_sums, partial + d);
  }
}

template <typename W>
Scale<W> scale_of(const RmsNorm& norm) {
  return {static_cast<const W*>(norm.weight), static_cast<float>(norm.offset)};
}

}  // namespace

void rms_norm_forward(const RmsNorm& norm, const void* x, double eps, void* out, float* rstd, Stream stream) {
  with_elements(norm.type, norm.width, {x, norm.weight, out}, [&]<typename T, int kCount>() {
    with_weight<T>(norm.weight_type, [&]<typename W>() {
      const auto kernel = forward_rows<T, W, kCount>;
      LAUNCH(kernel, blocks_for(norm.rows), threads_for(norm.width / kCount, kNormThreads), stream,
             static_cast<const T*>(x), scale_of<W>(norm), static_cast<float>(eps), norm.rows, norm.width,
             static_cast<T*>(out), rstd);
    });
  });
}

void rms_norm_backward(const RmsNorm& norm, const void* grad_out, const void* x, const float* rstd,
                       const void* residual_grad, void* grad_x, float* grad_weight, float* workspace,
                       Stream stream) {
  const auto addresses = {grad_out,
                          x,
                          norm.weight,
                          residual_grad,
                          static_cast<const void*>(grad_x),
                          static_cast<const void*>(workspace)};
  with_elements(norm.type, norm.width, addresses, [&]<typename T, int kCount>() {
    with_weight<T>(norm.weight_type, [&]<typename W>() {
      const BackwardRows<T, W> rows{static_cast<const T*>(grad_out),
                                    static_cast<const T*>(x),
                                    scale_of<W>(norm),
                                    rstd,
                                    static_cast<const T*>(residual_grad),
                                    static_cast<T*>(grad_x),
                                    workspace,
                                    norm.rows,
                                    norm.width};
      const auto kernel = backward_rows<T, W, kCount>;
      if (norm.rows == 0) return;
      LAUNCH(kernel, static_cast<unsigned>(parts_of(norm.rows)),
             threads_for(norm.width / kCount, kNormThreads), stream, rows, rows_of_part(norm.rows));
    });
  });
  sum_columns(workspace, parts_of(norm.rows), norm.width, norm.width, grad_weight, stream);
}

}  // namespace stepforge::cuda
