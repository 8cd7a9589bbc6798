// SPDX-License-Identifier: Apache-2.0
// Finds texts that occurred before, by their hashes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stepforge/base/files.h"

namespace stepforge {

/// A set of hashes: about 20 to 30 bytes each, however many there are. Two different texts with the same hash count as
/// equal, which does not happen by chance.
class SeenTexts {
 public:
  /// Whether the hash is new; it is in the set from now on.
  bool insert(const Hash128& hash);
  int64_t size() const { return size_; }
  /// Of the memory that it takes.
  int64_t bytes() const;

 private:
  /// A hash table with linear probing. Many small ones, so that only one at a time is copied when it grows.
  struct Shard {
    std::vector<Hash128> slots;
    size_t used = 0;
  };
  static constexpr size_t kShards = 256;

  static void grow(Shard& shard);

  std::array<Shard, kShards> shards_;
  int64_t size_ = 0;
  bool has_zero_ = false;  ///< the hash 0, which marks free slots
};

}  // namespace stepforge
