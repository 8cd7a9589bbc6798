// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over the threads of a warp or block, in one order. Every thread gets the same bits.
#pragma once

#include "stepforge/cuda/elements.h"

namespace stepforge::cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

struct Sum {
  template <typename Value>
  __device__ Value operator()(Value left, Value right) const {
    return left + right;
  }
};

/// Of two numbers; of a number and a NaN the number.
struct Largest {
  __device__ float operator()(float left, float right) const { return fmaxf(left, right); }
};

template <typename Value, typename Join>
__device__ Value join_in_warp(Value value, Join join) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = join(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

/// One value of each warp.
template <typename Value>
using WarpValues = SharedArray<Value, 32>;

/// `none` joined with a value is that value. All threads of the block call it; blocks are of whole warps.
template <typename Value, typename Join>
__device__ Value join_in_block(Value value, Join join, Value none, WarpValues<Value>& of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = join_in_warp(value, join);
  if (warps == 1) return value;
  __syncthreads();  // an earlier call may still be read
  if (lane == 0) of_warps[static_cast<int>(threadIdx.x) / kWarp] = value;
  __syncthreads();
  return join_in_warp(lane < warps ? of_warps[lane] : none, join);
}

}  // namespace stepforge::cuda
