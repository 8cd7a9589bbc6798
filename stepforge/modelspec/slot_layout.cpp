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
    const std::vector<Run> having = runs(slot);
    if (is_whole(having)) {
      sizes_.push_back(shards_.shard_size());
      continue;
    }
    int64_t largest = 0;
    for (int rank = 0; rank < shards_.shards(); ++rank) {
      int64_t size = 0;
      for (const Run& run : having) size += shards_.local_range(rank, run.first, run.last).size();
      largest = std::max(largest, size);
    }
    sizes_.push_back(largest);
  }
}

int64_t SlotLayout::elements() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
}

std::vector<SlotLayout::Run> SlotLayout::runs(int slot) const {
  std::vector<Run> found;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] <= slot) continue;
    if (found.empty() || found.back().last != i) found.push_back({i, i});
    found.back().last = i + 1;
  }
  return found;
}

bool SlotLayout::is_whole(const std::vector<Run>& runs) const {
  return runs.size() == 1 && runs[0].first == 0 && runs[0].last == counts_.size();
}

int64_t SlotLayout::shift(int rank, int slot, std::size_t parameter) const {
  const std::vector<Run> having = runs(slot);
  if (is_whole(having)) return 0;
  int64_t before = 0;
  for (const Run& run : having) {
    const ShardRange range = shards_.local_range(rank, run.first, run.last);
    if (parameter >= run.first && parameter < run.last) return range.begin - before;
    before += range.size();
  }
  throw Error(format("parameter {} has no slot {}", parameter, slot));
}

}  // namespace stepforge
