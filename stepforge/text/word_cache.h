// SPDX-License-Identifier: Apache-2.0
// Caches the ids of words. Bounded: it is cleared when full.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

/// Owned by one thread. Memory: at most about 8 MiB.
class WordCache {
 public:
  WordCache() : slots_(kFirstCapacity) {}

  /// The ids of `word`, valid until the next insert; nullopt if it is not cached.
  std::optional<std::span<const int32_t>> find(std::string_view word) const;

  /// Long words are not cached: they rarely repeat. `word` must not be in the cache.
  void insert(std::string_view word, std::span<const int32_t> ids);

 private:
  static constexpr size_t kFirstCapacity = 512;
  static constexpr size_t kLastCapacity = size_t{1} << 17;
  static constexpr size_t kMaxCachedBytes = 32;

  struct Slot {
    /// 0 marks a free slot; words of length 0 do not exist.
    uint32_t length = 0;
    uint32_t count = 0;
    uint32_t bytes_begin = 0;
    uint32_t ids_begin = 0;
  };

  std::string_view word_of(const Slot& slot) const {
    return std::string_view(bytes_).substr(slot.bytes_begin, slot.length);
  }
  size_t slot_of(std::string_view word) const;
  void grow_or_clear();

  std::vector<Slot> slots_;
  std::string bytes_;
  std::vector<int32_t> ids_;
  size_t size_ = 0;
};

}  // namespace stepforge
