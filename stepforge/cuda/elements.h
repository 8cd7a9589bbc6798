// SPDX-License-Identifier: Apache-2.0
// What kernels have in common: elements of fp32 and bf16, several at a time where memory is aligned, and sizes of grids.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/cuda_on_cpu.h"

namespace stepforge::cuda {

using BFloat16 = __nv_bfloat16;

constexpr int kWarp = 32;

__device__ inline float widen(float value) {
  return value;
}
__device__ inline float widen(BFloat16 value) {
  return __bfloat162float(value);
}
__device__ inline void narrow(float value, float& to) {
  to = value;
}
/// To the nearest, ties to even.
__device__ inline void narrow(float value, BFloat16& to) {
  to = __float2bfloat16_rn(value);
}

constexpr int kLoadBytes = 16;  // the widest load of a thread

/// Elements that one load takes.
template <typename T>
constexpr int kVector = kLoadBytes / static_cast<int>(sizeof(T));

template <typename T, int kCount>
struct alignas(kCount * sizeof(T) < kLoadBytes ? kCount * sizeof(T) : kLoadBytes) Pack {
  T items[kCount];
};

template <int kCount, typename T>
__device__ void load(const T* from, float (&to)[kCount]) {
  check_alignment(from, alignof(Pack<T, kCount>));
  const Pack<T, kCount> pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
  for (int i = 0; i < kCount; ++i) to[i] = widen(pack.items[i]);
}

template <int kCount, typename T>
__device__ void store(const float (&from)[kCount], T* to) {
  Pack<T, kCount> pack = {};
  for (int i = 0; i < kCount; ++i) narrow(from[i], pack.items[i]);
  check_alignment(to, alignof(Pack<T, kCount>));
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

inline bool are_aligned(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<std::uintptr_t>(address) % kLoadBytes != 0) return false;
  }
  return true;
}

/// Calls run<T>().
template <typename Run>
void with_type(DType type, const Run& run) {
  switch (type) {
    case DType::f32:
      return run.template operator()<float>();
    case DType::bf16:
      return run.template operator()<BFloat16>();
    default:
      throw std::invalid_argument("CUDA kernels take fp32 and bf16");
  }
}

/// Calls run<T, kCount>(): kCount elements at a time are possible in rows of `width` at these addresses.
template <typename Run>
void with_elements(DType type, int64_t width, std::initializer_list<const void*> addresses, const Run& run) {
  with_type(type, [&]<typename T>() {
    if (width % kVector<T> == 0 && are_aligned(addresses)) {
      run.template operator()<T, kVector<T>>();
    } else {
      run.template operator()<T, 1>();
    }
  });
}

/// Calls run<W>() with the type of a weight: fp32, or T, that of the activations.
template <typename T, typename Run>
void with_weight(DType type, const Run& run) {
  if (type == DType::f32) {
    run.template operator()<float>();
  } else {
    run.template operator()<T>();
  }
}

constexpr int64_t kMaxBlocks = 4096;  // they take the rest of the work in turn

/// Blocks for `units` of work, of which a block takes `per_block` at a time. At least 1.
inline unsigned blocks_for(int64_t units, int64_t per_block = 1) {
  const int64_t blocks = units > 0 ? (units - 1) / per_block + 1 : 1;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

/// Threads of a block for a row of `units` that are handled at a time: whole warps, at most `most`.
inline unsigned threads_for(int64_t units, int64_t most) {
  const int64_t threads = units > 0 ? (units - 1) / kWarp * kWarp + kWarp : kWarp;
  return static_cast<unsigned>(threads < most ? threads : most);
}

/// The number of this thread in its grid, and of threads in the grid.
__device__ inline int64_t thread_of_grid() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline int64_t threads_of_grid() {
  return int64_t{gridDim.x} * blockDim.x;
}

}  // namespace stepforge::cuda
