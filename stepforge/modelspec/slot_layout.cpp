// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/slot_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

SlotLayout::SlotLayout(const ShardLayout& shards, std::vector<int> counts)
    : shards_(shards), counts_(std::move(counts)) {
  const int most = counts_.empty() ? 0 : *std::ranges::max_element(counts_);
  for (int slot = 0; slot < most; ++slot) {
    runs_.push_back(runs_of(slot));
    int64_t largest = 0;
    for (int rank = 0; rank < shards_.shards() && !is_whole(slot); ++rank) {
      int64_t size = 0;
      for (const Run& run : runs_.back()) size += shards_.local_range(rank, run.first, run.last).size();
      largest = std::max(largest, size);
    }
    sizes_.push_back(is_whole(slot) ? shards_.shard_size() : largest);
  }
}

int64_t SlotLayout::elements() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
}

std::vector<SlotLayout::Run> SlotLayout::runs_of(int slot) const {
  std::vector<Run> found;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] <= slot) continue;
    if (found.empty() || found.back().last != i) found.push_back({i, i});
    found.back().last = i + 1;
  }
  return found;
}

bool SlotLayout::is_whole(int slot) const {
  const std::vector<Run>& runs = runs_.at(static_cast<std::size_t>(slot));
  return runs.size() == 1 && runs[0].first == 0 && runs[0].last == counts_.size();
}

int64_t SlotLayout::shift(int rank, int slot, std::size_t parameter) const {
  if (is_whole(slot)) return 0;
  int64_t before = 0;
  for (const Run& run : runs_.at(static_cast<std::size_t>(slot))) {
    const ShardRange range = shards_.local_range(rank, run.first, run.last);
    if (parameter >= run.first && parameter < run.last) return range.begin - before;
    before += range.size();
  }
  throw Error(format("parameter {} has no slot {}", parameter, slot));
}

}  // namespace stepforge
