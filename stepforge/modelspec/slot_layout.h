// SPDX-License-Identifier: Apache-2.0
// The memory of an optimizer's state for one unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

/// A slot is a flat fp32 buffer on each rank, with a value for each element of the parameters that have it, in the order
/// of the shard. It is as large on all ranks of the shard group, and as the shard itself if all parameters have it.
class SlotLayout {
 public:
  /// `counts`: the number of slots of each parameter of the unit, which has slots 0 to count - 1.
  SlotLayout(const ShardLayout& shards, std::vector<int> counts);

  int slots() const { return static_cast<int>(sizes_.size()); }
  /// Elements of a slot on each rank.
  int64_t size(int slot) const { return sizes_.at(static_cast<std::size_t>(slot)); }
  /// Of all slots.
  int64_t elements() const;
  int count(std::size_t parameter) const { return counts_.at(parameter); }
  /// How much smaller the offset of an element of `parameter` is in the slot than in the shard of `rank`.
  int64_t shift(int rank, int slot, std::size_t parameter) const;

 private:
  /// Neighbouring parameters that have a slot.
  struct Run {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  std::vector<Run> runs_of(int slot) const;
  /// Whether all parameters have the slot.
  bool is_whole(int slot) const;

  ShardLayout shards_;
  std::vector<int> counts_;
  std::vector<std::vector<Run>> runs_;  // of each slot
  std::vector<int64_t> sizes_;          // of each slot
};

}  // namespace stepforge
