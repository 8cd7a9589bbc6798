// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/shard_slices.h"

#include <algorithm>
#include <utility>

namespace stepforge {

namespace {

/// Divides the elements that all replicas hold among them.
class ReplicaShare {
 public:
  ReplicaShare(int64_t total, int64_t replica, int64_t replicas)
      : begin_(total * replica / replicas), end_(total * (replica + 1) / replicas) {}

  /// This replica's part of the next slice.
  std::vector<ShardSlice> take(const ShardSlice& held, const SavedState& state) {
    const int64_t elements = held.slice.elements();
    const int64_t weight = state.weight * state.block;  // of a block
    const auto index_in_slice = [&](int64_t position) {
      return std::clamp((position - passed_ + weight - 1) / weight * state.block, int64_t{0}, elements);
    };
    const int64_t begin = index_in_slice(begin_);
    const int64_t end = index_in_slice(end_);
    passed_ += elements * state.weight;
    return slice_range(held, begin, end);
  }

 private:
  int64_t begin_;
  int64_t end_;
  int64_t passed_ = 0;
};

}  // namespace

std::vector<ShardSlice> shard_slices(const UnitStore& unit, const NamedTensor& tensor) {
  std::vector<ShardSlice> held =
      unit.slices(tensor.parameter, tensor.row, tensor.row + tensor.slice.sizes.at(0));
  for (ShardSlice& part : held) part.slice = moved(std::move(part.slice), tensor.slice.offsets);
  return held;
}

std::vector<std::vector<ShardSlice>> saved_slices(
    const std::vector<NamedTensor>& tensors, const ModelStore& store,
    const std::function<SavedState(const NamedTensor& tensor)>& state_of) {
  std::vector<std::vector<ShardSlice>> held;
  int64_t total = 0;
  for (const NamedTensor& tensor : tensors) {
    const UnitStore& unit = store.unit(tensor.unit);
    held.emplace_back();
    if (unit.layout().counts(tensor.parameter)) held.back() = shard_slices(unit, tensor);
    for (const ShardSlice& slice : held.back()) total += slice.slice.elements() * state_of(tensor).weight;
  }
  const UnitStore& unit = store.unit(0);  // all units have the same replicas
  if (unit.replicas() == 1) return held;
  ReplicaShare share(total, unit.replica(), unit.replicas());
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<ShardSlice> own;
    for (const ShardSlice& slice : held[i]) {
      for (ShardSlice& part : share.take(slice, state_of(tensors[i]))) own.push_back(std::move(part));
    }
    held[i] = std::move(own);
  }
  return held;
}

}  // namespace stepforge
