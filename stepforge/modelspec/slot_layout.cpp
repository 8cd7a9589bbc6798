// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/slot_layout.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr int64_t kSlotAlignment = 64;  // bytes; any type may begin there

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::vector<int64_t> SlotSpec::shape(std::vector<int64_t> of) const {
  if (!of.empty()) of.back() /= block;
  return of;
}

TensorSlice SlotSpec::slice(TensorSlice of) const {
  return {shape(std::move(of.offsets)), shape(std::move(of.sizes))};
}

UnitSlots adamw_slots(const UnitSpec& unit) {
  return UnitSlots(unit.parameters.size(), {{"exp_avg"}, {"exp_avg_sq"}});
}

SlotLayout::SlotLayout(const ShardLayout& shards, const UnitSpec& unit, const UnitSlots& slots)
    : shards_(shards), begins_{0} {
  for (const std::vector<SlotSpec>& of_parameter : slots) {
    of_parameters_.emplace_back();
    for (const SlotSpec& slot : of_parameter) {
      const auto found = std::ranges::find(slots_, slot);
      of_parameters_.back().push_back(static_cast<int>(found - slots_.begin()));
      if (found == slots_.end()) slots_.push_back(slot);
    }
  }
  require_whole_blocks(unit);
  for (int slot = 0; slot < std::ssize(slots_); ++slot) {
    const SlotSpec& spec = slots_[static_cast<std::size_t>(slot)];
    runs_.push_back(runs_of(slot));
    int64_t largest = 0;
    for (int rank = 0; rank < shards_.shards() && !is_whole(slot); ++rank) {
      int64_t elements_of_rank = 0;
      for (const Run& run : runs_.back()) elements_of_rank += elements(rank, run);
      largest = std::max(largest, elements_of_rank);
    }
    sizes_.push_back((is_whole(slot) ? shards_.shard_size() : largest) / spec.block);
    begins_.push_back(begins_.back() + rounded_up(sizes_.back() * dtype_bytes(spec.dtype), kSlotAlignment));
  }
}

void SlotLayout::require_whole_blocks(const UnitSpec& unit) const {
  for (std::size_t i = 0; i < of_parameters_.size(); ++i) {
    for (const int index : of_parameters_[i]) {
      const SlotSpec& slot = slots_[static_cast<std::size_t>(index)];
      if (slot.block < 1 || kTensorAlignment % slot.block != 0)
        throw UsageError(format("optimizer slot {}: blocks of {} elements; their size must divide {}",
                                slot.name, slot.block, kTensorAlignment));
      if (slot.block == 1) continue;
      for (int rank = 0; rank < shards_.shards(); ++rank) {
        for (const ShardSlice& held : shards_.slices(rank, i)) {
          if (held.slice.sizes.back() % slot.block == 0 && held.slice.offsets.back() % slot.block == 0)
            continue;
          throw UsageError(
              format("optimizer slot {} has a value for each {} elements of a row, "
                     "but a rank has {} elements of a row of {}; "
                     "divide its rows over fewer ranks, or choose another optimizer.name",
                     slot.name, slot.block, held.slice.sizes.back(), unit.parameters.at(i).name));
        }
      }
    }
  }
}

bool SlotLayout::has(std::size_t parameter, int slot) const {
  return std::ranges::count(of(parameter), slot) > 0;
}

std::vector<SlotLayout::Run> SlotLayout::runs_of(int slot) const {
  std::vector<Run> found;
  for (std::size_t i = 0; i < of_parameters_.size(); ++i) {
    if (!has(i, slot)) continue;
    if (found.empty() || found.back().last != i) found.push_back({i, i});
    found.back().last = i + 1;
  }
  return found;
}

bool SlotLayout::is_whole(int slot) const {
  const std::vector<Run>& runs = runs_.at(static_cast<std::size_t>(slot));
  return runs.size() == 1 && runs[0].first == 0 && runs[0].last == of_parameters_.size();
}

int64_t SlotLayout::elements(int rank, const Run& run) const {
  return rounded_up(shards_.local_range(rank, run.first, run.last).size(), kTensorAlignment);
}

int64_t SlotLayout::place(int rank, int slot, std::size_t parameter, int64_t local) const {
  const int64_t block = slots_.at(static_cast<std::size_t>(slot)).block;
  if (is_whole(slot)) return local / block;
  int64_t before = 0;
  for (const Run& run : runs_.at(static_cast<std::size_t>(slot))) {
    if (parameter >= run.first && parameter < run.last)
      return (local - shards_.local_range(rank, run.first, run.last).begin + before) / block;
    before += elements(rank, run);
  }
  throw Error(format("parameter {} has no slot {}", parameter, slot));
}

}  // namespace stepforge
