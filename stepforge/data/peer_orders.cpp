// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/peer_orders.h"

#include <bit>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

std::vector<int64_t> first_numbers(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

void require_at_most(int64_t count, int64_t most) {
  if (count > most)
    throw UsageError(format(
        "{} documents cannot be shuffled in a peer's order, at most {}: use data.packing = \"concat\" or "
        "more, smaller sources",
        count, most));
}

}  // namespace

std::vector<int64_t> torch_randperm(int64_t count, uint32_t seed) {
  require_at_most(count, std::numeric_limits<uint32_t>::max() / 20 - 1);
  std::mt19937 generator(seed);
  std::vector<int64_t> order = first_numbers(count);
  for (int64_t i = 0; i + 1 < count; ++i) {
    const auto other = i + static_cast<int64_t>(generator() % static_cast<uint64_t>(count - i));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(other)]);
  }
  return order;
}

std::vector<int64_t> numpy_shuffle(int64_t count, uint32_t seed) {
  require_at_most(count, std::numeric_limits<uint32_t>::max());
  std::mt19937 generator(seed);
  std::vector<int64_t> order = first_numbers(count);
  for (int64_t i = count - 1; i > 0; --i) {
    const uint64_t mask = std::bit_ceil(static_cast<uint64_t>(i) + 1) - 1;
    uint64_t other = generator() & mask;
    while (other > static_cast<uint64_t>(i)) other = generator() & mask;
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(other)]);
  }
  return order;
}

}  // namespace stepforge
