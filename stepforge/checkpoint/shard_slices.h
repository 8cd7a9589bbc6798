// Which part of a tensor this rank holds, and where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// What this rank holds of `tensor`, a part of `unit`; perhaps nothing.
std::vector<ShardSlice> shard_slices(const UnitStore& unit, const NamedTensor& tensor);

/// What this rank saves of each tensor: `tensors` in their order. Replicas hold the same, so each saves a
/// share of it, cut where the shares have the same number of bytes, optimizer state included: `flats(unit)`
/// tells how many buffers of a unit are saved. Over all ranks every element is there once.
std::vector<std::vector<ShardSlice>> saved_boxes(const std::vector<NamedTensor>& tensors,
                                                 const ModelStore& store,
                                                 const std::function<int64_t(size_t unit)>& flats);

}  // namespace stepforge
