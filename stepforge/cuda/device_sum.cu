// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/device_sum.h"

#include <cstdint>

#include "stepforge/cuda/cuda_on_cpu.h"
#include "stepforge/cuda/half.h"

namespace stepforge::cuda {

namespace {

constexpr int kSumThreads = 256;
constexpr std::size_t kMostBlocks = 4096;
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

/// The sources of a sum.
struct Sources {
  const std::byte* staging;
  std::size_t stride;
  const std::byte* own;
  int own_member;
  int members;
};

template <typename Element>
__global__ void sum_elements(Sources sources, std::byte* output, std::size_t elements) {
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += step) {
    // stash[level] is the sum of 2^level sources, as when a binary counter carries.
    Sum stash[kMaxLevels];
    Sum current{};
    for (int leaf = 0; leaf < sources.members; ++leaf) {
      const bool is_last = leaf + 1 == sources.members;
      const std::byte* const source =
          leaf == sources.own_member ? sources.own
                                     : sources.staging + static_cast<std::size_t>(leaf) * sources.stride;
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

template <typename Element>
void run(const Sources& sources, std::byte* output, std::size_t bytes, Stream stream) {
  const std::size_t elements = bytes / sizeof(typename Element::Stored);
  if (elements == 0) return;
  const std::size_t blocks = (elements + kSumThreads - 1) / kSumThreads;
  const auto kernel = sum_elements<Element>;
  LAUNCH(kernel, static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kSumThreads, stream,
         sources, output, elements);
}

}  // namespace

void device_tree_sum(const std::byte* staging, std::size_t stride, const std::byte* own, int own_member,
                     int members, std::byte* output, std::size_t bytes, DType dtype, Stream stream) {
  const Sources sources{staging, stride, own, own_member, members};
  switch (dtype) {
    case DType::f64:
      return run<Plain<double>>(sources, output, bytes, stream);
    case DType::f32:
      return run<Plain<float>>(sources, output, bytes, stream);
    case DType::bf16:
      return run<BFloat16>(sources, output, bytes, stream);
    case DType::f16:
      return run<Float16>(sources, output, bytes, stream);
    case DType::i64:
      return run<Plain<uint64_t>>(sources, output, bytes, stream);
    default:
      return run<Plain<uint32_t>>(sources, output, bytes, stream);
  }
}

}  // namespace stepforge::cuda
