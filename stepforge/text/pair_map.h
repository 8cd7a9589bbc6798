// SPDX-License-Identifier: Apache-2.0
// A hash map from pairs of token ids, for the inner loops of encoding and training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stepforge/base/huge_pages.h"
#include "stepforge/base/random.h"

namespace stepforge {

using TokenPair = uint64_t;

/// Both ids must be at least 0. Pairs are ordered by left id, then right id.
inline TokenPair token_pair(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}
inline int32_t left_token(TokenPair pair) {
  return static_cast<int32_t>(pair >> 32);
}
inline int32_t right_token(TokenPair pair) {
  return static_cast<int32_t>(pair & 0xFFFFFFFF);
}

/// Open addressing with linear probing; entries are never removed. Pointers are valid until the next
/// insertion.
template <typename Value>
class PairMap {
 public:
  explicit PairMap(size_t expected = 0) {
    size_t capacity = 16;
    while (capacity < expected * 2) capacity *= 2;
    slots_.assign(capacity, Slot{});
  }

  const Value* find(TokenPair pair) const {
    const Slot& slot = slots_[slot_of(pair)];
    return slot.pair == pair ? &slot.value : nullptr;
  }

  /// The value of `pair`, value-initialised if it is new.
  Value& operator[](TokenPair pair) {
    size_t index = slot_of(pair);
    if (slots_[index].pair == pair) return slots_[index].value;
    if ((size_ + 1) * 2 > slots_.size()) {
      grow();
      index = slot_of(pair);
    }
    ++size_;
    slots_[index].pair = pair;
    return slots_[index].value;
  }

  size_t size() const { return size_; }

 private:
  /// No pair of non-negative ids has this value.
  static constexpr TokenPair kEmpty = ~TokenPair{0};

  struct Slot {
    TokenPair pair = kEmpty;
    Value value{};
  };

  size_t slot_of(TokenPair pair) const {
    const size_t mask = slots_.size() - 1;
    size_t index = mix_bits(pair) & mask;
    while (slots_[index].pair != pair && slots_[index].pair != kEmpty) index = (index + 1) & mask;
    return index;
  }

  void grow() {
    std::vector<Slot, HugePages<Slot>> old(slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.pair != kEmpty) slots_[slot_of(slot.pair)] = std::move(slot);
    }
  }

  std::vector<Slot, HugePages<Slot>> slots_;
  size_t size_ = 0;
};

}  // namespace stepforge
