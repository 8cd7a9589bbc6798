// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/device_sum.h"

#include <cstdint>
#include <type_traits>

#include "stepforge/cuda/elements.h"
#include "stepforge/cuda/half.h"

namespace stepforge::cuda {

namespace {

constexpr int kSumThreads = 256;
/// Enough levels for a tree over INT_MAX sources.
constexpr int kMaxLevels = 32;

/// The sources of a sum.
struct Sources {
  const std::byte* staging;
  std::size_t stride;
  const std::byte* own;
  int own_member;
  int members;
};

/// Elements of type T, which are added in type Sum.
template <typename T, typename Sum>
__global__ void __launch_bounds__(kSumThreads) sum_elements(Sources sources, T* output, int64_t elements) {
  for (int64_t i = thread_of_grid(); i < elements; i += threads_of_grid()) {
    // stash[level] is the sum of 2^level sources, as when a binary counter carries.
    Sum stash[kMaxLevels];
    Sum current{};
    for (int leaf = 0; leaf < sources.members; ++leaf) {
      const bool is_last = leaf + 1 == sources.members;
      const std::byte* const source =
          leaf == sources.own_member ? sources.own
                                     : sources.staging + static_cast<std::size_t>(leaf) * sources.stride;
      const T value = reinterpret_cast<const T*>(source)[i];
      if constexpr (std::is_same_v<T, Sum>)
        current = value;
      else
        current = widen(value);
      for (int level = 0; (leaf >> level) != 0 || !is_last; ++level) {
        if (((leaf >> level) & 1) != 0) {
          current = stash[level] + current;
        } else if (!is_last) {
          stash[level] = current;
          break;
        }
      }
    }
    if constexpr (std::is_same_v<T, Sum>)
      output[i] = current;
    else
      narrow(current, output[i]);
  }
}

template <typename T, typename Sum = T>
void run(const Sources& sources, std::byte* output, std::size_t bytes, Stream stream) {
  const auto elements = static_cast<int64_t>(bytes / sizeof(T));
  if (elements == 0) return;
  const auto kernel = sum_elements<T, Sum>;
  LAUNCH(kernel, blocks_for(elements, kSumThreads), kSumThreads, stream, sources,
         reinterpret_cast<T*>(output), elements);
}

}  // namespace

void device_tree_sum(const std::byte* staging, std::size_t stride, const std::byte* own, int own_member,
                     int members, std::byte* output, std::size_t bytes, DType dtype, Stream stream) {
  const Sources sources{staging, stride, own, own_member, members};
  switch (dtype) {
    case DType::f64:
      return run<double>(sources, output, bytes, stream);
    case DType::f32:
      return run<float>(sources, output, bytes, stream);
    case DType::bf16:
      return run<BFloat16, float>(sources, output, bytes, stream);
    case DType::f16:
      return run<__half, float>(sources, output, bytes, stream);
    case DType::i64:
      return run<uint64_t>(sources, output, bytes, stream);
    default:
      return run<uint32_t>(sources, output, bytes, stream);
  }
}

}  // namespace stepforge::cuda
