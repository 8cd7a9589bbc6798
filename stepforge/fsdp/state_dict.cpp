// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/state_dict.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

const ParameterSpec& parameter_of(const StateSource& source, const StateEntry& entry) {
  return source.units.at(static_cast<size_t>(entry.unit)).store->spec().parameters.at(entry.parameter);
}

/// This rank's parts of a parameter, sharing the unit's memory.
LocalValue local_value(const StateSource& source, const StateEntry& entry) {
  const StateUnit& unit = source.units.at(static_cast<size_t>(entry.unit));
  LocalValue value{parameter_of(source, entry).shape, unit.store->slices(entry.parameter), {}};
  int64_t elements = 0;
  const int64_t first = value.slices.empty() ? 0 : value.slices.front().local;
  for (ShardSlice& slice : value.slices) {
    slice.local -= first;
    elements += slice.elements();
  }
  value.data = unit.shard.narrow(0, first, elements);
  return value;
}

at::Tensor copy_of(const at::Tensor& tensor, bool on_host) {
  const at::Tensor source = tensor.detach();
  return on_host
             ? source.to(at::Device(at::kCPU), source.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
             : source.clone();
}

/// The whole unit in flat_layout(): of this rank's replica, or of rank 0's.
at::Tensor whole_unit(const StateUnit& unit, Communicator* all, bool from_rank0) {
  at::Tensor flat = unit.store->whole(unit.shard);
  if (!from_rank0 || unit.store->replicas() == 1) return flat;
  if (flat.is_same(unit.shard)) flat = flat.clone();
  all->broadcast(bytes_of(flat), 0);
  return flat;
}

/// The entries that `options` select.
std::vector<const StateEntry*> selected_entries(const StateSource& source, const GetStateOptions& options) {
  std::vector<const StateEntry*> selected;
  for (const StateEntry& entry : source.entries) {
    if (!entry.frozen || !options.ignore_frozen_params) selected.push_back(&entry);
  }
  return selected;
}

StateDict full_state(const StateSource& source, const GetStateOptions& options) {
  const bool from_rank0 = options.broadcast_from_rank0 && source.all != nullptr;
  const bool keeps = !options.cpu_offload || from_rank0 || source.all == nullptr || source.all->rank() == 0;
  std::map<int, std::vector<const StateEntry*>> by_unit;
  for (const StateEntry* entry : selected_entries(source, options)) by_unit[entry->unit].push_back(entry);
  StateDict values;
  for (const auto& [index, entries] : by_unit) {
    if (index < 0) continue;
    const StateUnit& unit = source.units.at(static_cast<size_t>(index));
    const at::Tensor flat = whole_unit(unit, source.all, from_rank0);
    if (!keeps) continue;
    const FlatLayout layout = flat_layout(unit.store->spec());
    for (const StateEntry* entry : entries) {
      const ParameterSpec& parameter = parameter_of(source, *entry);
      const at::Tensor part = flat.narrow(0, layout.offsets.at(entry->parameter), parameter.elements());
      values[entry->name] = copy_of(part.view(parameter.shape), options.cpu_offload);
    }
  }
  for (const StateEntry* entry : by_unit[-1]) {
    if (!keeps) continue;
    const at::Tensor value = copy_of(entry->whole.contiguous(), options.cpu_offload);
    if (from_rank0) source.all->broadcast(bytes_of(value), 0);
    values[entry->name] = value;
  }
  return values;
}

StateDict sharded_state(const StateSource& source, const GetStateOptions& options) {
  StateDict values;
  for (const StateEntry* entry : selected_entries(source, options)) {
    if (entry->unit < 0) {
      values[entry->name] = options.cpu_offload ? copy_of(entry->whole, true) : entry->whole.detach();
      continue;
    }
    LocalValue value = local_value(source, *entry);
    if (options.cpu_offload) value.data = copy_of(value.data, true);
    values[entry->name] = std::move(value);
  }
  return values;
}

}  // namespace

StateDict get_state_dict(const StateSource& source, const GetStateOptions& options) {
  if (options.broadcast_from_rank0 && !options.full_state_dict) {
    throw UsageError(
        "broadcast_from_rank0 without full_state_dict: rank 0 cannot send the shards of other ranks; set "
        "full_state_dict too");
  }
  const at::NoGradGuard no_grad;
  return options.full_state_dict ? full_state(source, options) : sharded_state(source, options);
}

}  // namespace stepforge
