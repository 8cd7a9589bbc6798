// SPDX-License-Identifier: Apache-2.0
// The shuffled orders of other programs, reproduced number by number. All use the Mersenne Twister MT19937.
#pragma once

#include <cstdint>
#include <vector>

namespace stepforge {

/// torch.randperm(count, generator=torch.Generator().manual_seed(seed)) on a CPU. Throws UsageError for
/// count >= 2^32 / 20, from where on PyTorch draws 64 bits.
std::vector<int64_t> torch_randperm(int64_t count, uint32_t seed);

/// numpy.arange(count) after numpy.random.RandomState(seed).shuffle. count < 2^32.
std::vector<int64_t> numpy_shuffle(int64_t count, uint32_t seed);

}  // namespace stepforge
