// SPDX-License-Identifier: Apache-2.0
// A hash table from words of limited length to few ids, which forgets: for the innermost loop of encoding.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/base/huge_pages.h"

namespace stepforge {

/// Words and ids lie in the slots themselves. A word has two possible slots, beside each other: it takes the second, from
/// which the word before it is forgotten, and is moved to the first when it is found again. So words that do not repeat
/// push out only each other. `kKeyWords`: of eight bytes.
template <size_t kKeyWords, size_t kIds>
class WordTable {
 public:
  static constexpr size_t kMaxBytes = kKeyWords * 8 - 1;
  static constexpr size_t kMaxIds = kIds;

  /// The bytes of a word, then zeros; the last byte is the length, 0 for no word.
  using Key = std::array<uint64_t, kKeyWords>;

  /// Ids with their count: the last one is its complement unless there are kIds. If there are more, they are not here.
  struct Ids {
    std::array<int32_t, kIds> ids{};
    size_t count() const { return ids.back() < 0 ? static_cast<size_t>(~ids.back()) : kIds; }
  };

  /// Sizes are powers of two.
  WordTable(size_t first_pairs, size_t most_pairs) : most_pairs_(most_pairs) { resize(first_pairs); }

  /// A word and where to look for it.
  struct Place {
    Key key;
    uint64_t hash;
  };

  /// The memory of the word can be read up to `end`. A word of more than kMaxBytes is never found.
  static Place place_of(std::string_view word, const char* end) {
    const size_t size = std::min(word.size(), kMaxBytes + 1);
    Key key{};
    // NOLINTBEGIN(bugprone-suspicious-stringview-data-usage): sizes are given
    if (end - word.data() >= static_cast<std::ptrdiff_t>(sizeof(Key))) {
      std::memcpy(key.data(), word.data(), sizeof(Key));
      for (size_t i = 0; i < kKeyWords; ++i) key[i] &= kMasks[size][i];
    } else {
      std::memcpy(key.data(), word.data(), std::min(size, kMaxBytes));
    }
    // NOLINTEND(bugprone-suspicious-stringview-data-usage)
    key.back() |= uint64_t{size} << kLengthShift;
    return {key, hash_of(key)};
  }

  /// Begins to bring the place from memory.
  void prefetch(const Place& place) const { __builtin_prefetch(&pairs_[place.hash >> shift_]); }

  /// Null if the word is not here. Valid until the next call.
  const Ids* find(const Place& place) {
    Pair& pair = pairs_[place.hash >> shift_];
    if (equal(pair[0].key, place.key)) return &pair[0].ids;
    if (!equal(pair[1].key, place.key)) return nullptr;
    std::swap(pair[0], pair[1]);
    return &pair[0].ids;
  }

  /// Adds or replaces a word of at most kMaxBytes.
  void insert(const Place& place, std::span<const int32_t> ids) {
    if (++inserted_ > pairs_.size() && pairs_.size() < most_pairs_) grow();
    Slot slot{place.key, {}};
    std::copy_n(ids.begin(), std::min(ids.size(), kIds), slot.ids.ids.begin());
    if (ids.size() != kIds) slot.ids.ids.back() = ~static_cast<int32_t>(ids.size());
    put(slot);
  }

 private:
  struct Slot {
    Key key{};
    Ids ids;
  };
  /// Small slots share a line of the processor's cache.
  struct alignas(64) Pair : std::array<Slot, 2> {};

  static constexpr int kLengthShift = std::endian::native == std::endian::little ? 56 : 0;

  static constexpr auto kMasks = [] {
    std::array<Key, kMaxBytes + 2> masks{};
    for (size_t size = 0; size < masks.size(); ++size) {
      std::array<uint8_t, sizeof(Key)> bytes{};
      for (size_t i = 0; i < std::min(size, kMaxBytes); ++i) bytes[i] = 0xFF;
      masks[size] = std::bit_cast<Key>(bytes);
    }
    return masks;
  }();

  /// Without the call that comparing arrays makes.
  static bool equal(const Key& left, const Key& right) {
    uint64_t difference = 0;
    for (size_t i = 0; i < kKeyWords; ++i) difference |= left[i] ^ right[i];
    return difference == 0;
  }

  static uint64_t hash_of(const Key& key) {
    uint64_t hash = key.back();
    for (size_t i = 0; i + 1 < kKeyWords && (i < 2 || key[i] != 0); ++i)
      hash = (std::rotl(hash, 29) ^ key[i]) * 0x9E3779B97F4A7C15;
    return (hash ^ hash >> 32) * 0xBF58476D1CE4E5B9;
  }

  void put(const Slot& slot) {
    Pair& pair = pairs_[hash_of(slot.key) >> shift_];
    const bool takes_first = pair[0].key.back() == 0 || equal(pair[0].key, slot.key);
    pair[takes_first ? 0 : 1] = slot;
  }

  void resize(size_t pairs) {
    pairs_.assign(pairs, Pair{});
    shift_ = 64 - std::bit_width(pairs - 1);
  }

  void grow() {
    const auto old = std::exchange(pairs_, {});
    resize(std::min(old.size() * 4, most_pairs_));
    inserted_ = 0;
    for (const Pair& pair : old) {
      for (const Slot& slot : pair) {
        if (slot.key.back() == 0) continue;
        put(slot);
        ++inserted_;
      }
    }
  }

  std::vector<Pair, HugePages<Pair>> pairs_;
  size_t most_pairs_;
  size_t inserted_ = 0;  ///< since it last grew, and what was here then
  int shift_ = 0;
};

}  // namespace stepforge
