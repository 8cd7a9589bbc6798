// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "stepforge/engines/nccl/device_sum.h"

namespace stepforge {

namespace {

/// Enough levels for a tree over INT_MAX sources.
constexpr int kMaxLevels = 32;

template <typename Number>
struct Plain {
  using Stored = Number;
  using Sum = Number;
  static __device__ Sum load(Stored value) { return value; }
  static __device__ Stored store(Sum value) { return value; }
};

struct BFloat16 {
  using Stored = __nv_bfloat16;
  using Sum = float;
  static __device__ Sum load(Stored value) { return __bfloat162float(value); }
  static __device__ Stored store(Sum value) { return __float2bfloat16_rn(value); }
};

struct Float16 {
  using Stored = __half;
  using Sum = float;
  static __device__ Sum load(Stored value) { return __half2float(value); }
  static __device__ Stored store(Sum value) { return __float2half_rn(value); }
};

template <typename Element>
__global__ void sum_elements(const std::byte* staging, std::size_t stride, const std::byte* own,
                             int own_member, int members, std::byte* output, std::size_t elements) {
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += step) {
    Sum stash[kMaxLevels];
    Sum current{};
    for (int leaf = 0; leaf < members; ++leaf) {
      const bool is_last = leaf + 1 == members;
      const std::byte* source = leaf == own_member ? own : staging + leaf * stride;
      current = Element::load(reinterpret_cast<const Stored*>(source)[i]);
      for (int level = 0; (leaf >> level) != 0 || !is_last; ++level) {
        if (((leaf >> level) & 1) != 0) {
          current = stash[level] + current;
        } else if (!is_last) {
          stash[level] = current;
          break;
        }
      }
    }
    reinterpret_cast<Stored*>(output)[i] = Element::store(current);
  }
}

}  // namespace

cudaError_t device_tree_sum(const std::byte* staging, std::size_t stride, const std::byte* own,
                            int own_member, int members, std::byte* output, std::size_t bytes, DType dtype,
                            cudaStream_t stream) {
  const std::size_t elements = bytes / static_cast<std::size_t>(dtype_bytes(dtype));
  if (elements == 0) return cudaSuccess;
  constexpr int threads = 256;
  const auto blocks = static_cast<unsigned>(elements / threads < 4096 ? elements / threads + 1 : 4096);
  const auto run = [&](auto kernel) {
    kernel<<<blocks, threads, 0, stream>>>(staging, stride, own, own_member, members, output, elements);
    return cudaGetLastError();
  };
  switch (dtype) {
    case DType::f64:
      return run(sum_elements<Plain<double>>);
    case DType::f32:
      return run(sum_elements<Plain<float>>);
    case DType::bf16:
      return run(sum_elements<BFloat16>);
    case DType::f16:
      return run(sum_elements<Float16>);
    case DType::i64:
      return run(sum_elements<Plain<unsigned long long>>);
    case DType::i32:
      return run(sum_elements<Plain<unsigned>>);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace stepforge
