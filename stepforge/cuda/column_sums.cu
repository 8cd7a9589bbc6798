// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/column_sums.h"
#include "stepforge/cuda/elements.h"

namespace stepforge::cuda {

namespace {

constexpr int kGroups = 8;  // of rows; a group is a warp, and each of its lanes a column

__global__ void __launch_bounds__(kGroups* kWarp)
    column_sums(const float* partials, int64_t rows, int64_t width, int64_t stride, float* target) {
  __shared__ SharedArray<float, kGroups * kWarp> of_groups;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = static_cast<int>(threadIdx.x) / kWarp;
  for (int64_t first = int64_t{blockIdx.x} * kWarp; first < width; first += int64_t{gridDim.x} * kWarp) {
    const int64_t column = first + lane;
    float sum = 0.0F;
    if (column < width) {
      for (int64_t r = group; r < rows; r += kGroups) sum += partials[r * stride + column];
    }
    of_groups[group * kWarp + lane] = sum;
    __syncthreads();
    if (group == 0 && column < width) {
      for (int g = 1; g < kGroups; ++g) sum += of_groups[g * kWarp + lane];
      target[column] = sum;
    }
    __syncthreads();
  }
}

}  // namespace

void sum_columns(const float* partials, int64_t rows, int64_t width, int64_t stride, float* target,
                 Stream stream) {
  LAUNCH(column_sums, blocks_for(width, kWarp), kGroups * kWarp, stream, partials, rows, width, stride,
         target);
}

}  // namespace stepforge::cuda
