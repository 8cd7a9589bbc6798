// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/word_cache.h"

#include <functional>

namespace stepforge {

size_t WordCache::slot_of(std::string_view word) const {
  const size_t mask = slots_.size() - 1;
  size_t index = std::hash<std::string_view>{}(word)&mask;
  while (slots_[index].length != 0 && word_of(slots_[index]) != word) index = (index + 1) & mask;
  return index;
}

std::optional<std::span<const int32_t>> WordCache::find(std::string_view word) const {
  if (word.size() > kMaxCachedBytes) return std::nullopt;
  const Slot& slot = slots_[slot_of(word)];
  if (slot.length == 0) return std::nullopt;
  return std::span<const int32_t>(ids_).subspan(slot.ids_begin, slot.count);
}

void WordCache::insert(std::string_view word, std::span<const int32_t> ids) {
  if (word.size() > kMaxCachedBytes) return;
  if ((size_ + 1) * 2 > slots_.size()) grow_or_clear();
  slots_[slot_of(word)] = {static_cast<uint32_t>(word.size()), static_cast<uint32_t>(ids.size()),
                           static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(ids_.size())};
  bytes_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++size_;
}

void WordCache::grow_or_clear() {
  if (slots_.size() >= kLastCapacity) {
    *this = WordCache();
    return;
  }
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.length != 0) slots_[slot_of(word_of(slot))] = slot;
  }
}

}  // namespace stepforge
