// SPDX-License-Identifier: Apache-2.0
// The slices of a tensor that this rank holds, and those that it saves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// This rank's slices of `tensor`, which belongs to `unit`; may be empty.
std::vector<ShardSlice> shard_slices(const UnitStore& unit, const NamedTensor& tensor);

/// The state saved for the elements of a tensor. `weight` is in proportion to the bytes of an element; rows are cut at
/// multiples of `block` elements only.
struct SavedState {
  int64_t weight = 1;
  int64_t block = 1;
};

/// The slices that this rank saves of each of `tensors`. Replicas hold the same slices, so each saves an
/// equal share of the bytes. All ranks together save every element once.
std::vector<std::vector<ShardSlice>> saved_slices(
    const std::vector<NamedTensor>& tensors, const ModelStore& store,
    const std::function<SavedState(const NamedTensor& tensor)>& state_of);

}  // namespace stepforge
