// SPDX-License-Identifier: Apache-2.0
// The shuffled orders of other programs, reproduced number by number. All use the Mersenne Twister MT19937.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace stepforge {

/// The most numbers that torch_randperm() shuffles; PyTorch draws 64 bits for more.
inline constexpr int64_t kMaxTorchRandperm = int64_t{UINT32_MAX} / 20 - 1;

/// torch.randperm(count, generator=torch.Generator().manual_seed(seed)) on a CPU. Throws UsageError,
/// in terms of packing documents, for more than kMaxTorchRandperm.
std::vector<int64_t> torch_randperm(int64_t count, uint32_t seed);

/// numpy.arange(count) after numpy.random.RandomState(seed).shuffle. count < 2^32.
std::vector<int64_t> numpy_shuffle(int64_t count, uint32_t seed);

/// Python's random.Random(seed), as far as shuffle() needs it.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  /// Random.shuffle(items) for fewer than 2^32 items.
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(static_cast<uint32_t>(i))]);
  }

 private:
  uint32_t below(uint32_t bound);

  std::mt19937 generator_;
};

}  // namespace stepforge
