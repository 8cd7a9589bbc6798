// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/peer_orders.h"

#include <algorithm>
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

/// Fills the state of MT19937 from several words as its authors' init_by_array does.
class WordSeed {
 public:
  using result_type = uint32_t;

  explicit WordSeed(std::vector<uint32_t> words) : words_(std::move(words)) {}

  template <typename Iterator>
  void generate(Iterator begin, Iterator end) const {
    const auto size = static_cast<size_t>(end - begin);
    std::vector<uint32_t> state(size);
    state[0] = 19650218;
    for (size_t i = 1; i < size; ++i) state[i] = 1812433253U * mixed(state[i - 1]) + static_cast<uint32_t>(i);
    size_t i = 1;
    const auto advance = [&] {
      if (++i < size) return;
      state[0] = state[size - 1];
      i = 1;
    };
    for (size_t k = 0; k < std::max(size, words_.size()); ++k) {
      const size_t j = k % words_.size();
      state[i] = (state[i] ^ (mixed(state[i - 1]) * 1664525U)) + words_[j] + static_cast<uint32_t>(j);
      advance();
    }
    for (size_t k = 1; k < size; ++k) {
      state[i] = (state[i] ^ (mixed(state[i - 1]) * 1566083941U)) - static_cast<uint32_t>(i);
      advance();
    }
    state[0] = 0x80000000U;
    std::copy(state.begin(), state.end(), begin);
  }

 private:
  static uint32_t mixed(uint32_t word) { return word ^ (word >> 30); }

  std::vector<uint32_t> words_;
};

std::mt19937 python_generator(uint64_t seed) {
  std::vector<uint32_t> words = {static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) words.push_back(static_cast<uint32_t>(seed >> 32));
  WordSeed sequence(std::move(words));
  return std::mt19937(sequence);
}

}  // namespace

std::vector<int64_t> torch_randperm(int64_t count, uint32_t seed) {
  require_at_most(count, kMaxTorchRandperm);
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

PythonRandom::PythonRandom(uint64_t seed) : generator_(python_generator(seed)) {}

uint32_t PythonRandom::below(uint32_t bound) {
  const int unused_bits = std::countl_zero(bound);
  uint32_t drawn = static_cast<uint32_t>(generator_()) >> unused_bits;
  while (drawn >= bound) drawn = static_cast<uint32_t>(generator_()) >> unused_bits;
  return drawn;
}

}  // namespace stepforge
