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

/// The slices that this rank saves of each of `tensors`. Replicas hold the same slices, so each saves an
/// equal share of the bytes, including optimizer state: `flat_buffers(unit)` is the number of a unit's flat
/// buffers that are saved. All ranks together save every element once.
std::vector<std::vector<ShardSlice>> saved_slices(const std::vector<NamedTensor>& tensors,
                                                  const ModelStore& store,
                                                  const std::function<int64_t(size_t unit)>& flat_buffers);

}  // namespace stepforge
