// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/seen_texts.h"

#include <utility>

namespace stepforge {

namespace {

constexpr size_t kFirstSlots = 16;

/// The slot that holds `hash`, or the free one where it belongs. One slot must be free.
size_t slot_of(const std::vector<Hash128>& slots, const Hash128& hash) {
  // Maps the 64 bits to [0, slots) evenly, without a power of two.
  using Wide = unsigned __int128;
  auto slot = static_cast<size_t>((Wide{hash.low} * slots.size()) >> 64);
  while (slots[slot] != Hash128{} && slots[slot] != hash) slot = slot + 1 == slots.size() ? 0 : slot + 1;
  return slot;
}

}  // namespace

bool SeenTexts::insert(const Hash128& hash) {
  if (hash == Hash128{}) {
    const bool is_new = !std::exchange(has_zero_, true);
    size_ += is_new ? 1 : 0;
    return is_new;
  }
  Shard& shard = shards_[hash.high % kShards];
  // At most four fifths are used, so that probing stays short.
  if (5 * (shard.used + 1) > 4 * shard.slots.size()) grow(shard);
  Hash128& slot = shard.slots[slot_of(shard.slots, hash)];
  if (slot == hash) return false;
  slot = hash;
  ++shard.used;
  ++size_;
  return true;
}

void SeenTexts::grow(Shard& shard) {
  const size_t more = shard.slots.empty() ? kFirstSlots : shard.slots.size() + shard.slots.size() / 2;
  const std::vector<Hash128> old = std::exchange(shard.slots, std::vector<Hash128>(more));
  for (const Hash128& hash : old) {
    if (hash != Hash128{}) shard.slots[slot_of(shard.slots, hash)] = hash;
  }
}

int64_t SeenTexts::bytes() const {
  size_t slots = 0;
  for (const Shard& shard : shards_) slots += shard.slots.size();
  return static_cast<int64_t>(slots * sizeof(Hash128));
}

}  // namespace stepforge
