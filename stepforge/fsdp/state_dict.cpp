// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/state_dict.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/fsdp/tensor_slices.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

const ParameterSpec& parameter_of(const StateSource& source, const StateEntry& entry) {
  return source.units.at(static_cast<size_t>(entry.unit)).store->spec().parameters.at(entry.parameter);
}

/// This rank's parts of a parameter, sharing the unit's memory.
LocalValue local_value(const StateSource& source, const StateEntry& entry) {
  const StateUnit& unit = source.units.at(static_cast<size_t>(entry.unit));
  LocalValue value{
      whole_shape(parameter_of(source, entry)), parts_of_whole(*unit.store, entry.parameter), {}};
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

/// The whole tensor of `parameter`, joined from the slices of all ranks of tensor parallelism, of which `own`
/// is this rank's.
at::Tensor join_slices(Communicator* tensor_ranks, const ParameterSpec& parameter, const at::Tensor& own) {
  if (tensor_ranks == nullptr || !parameter.is_sliced()) return own;
  const std::vector<TensorSlice> places = places_of_ranks(tensor_ranks, place_in_whole(parameter));
  int64_t largest = 0;
  for (const TensorSlice& place : places) largest = std::max(largest, place.elements());
  const at::Tensor sent = at::zeros({largest}, own.options());
  sent.narrow(0, 0, own.numel()).copy_(own.reshape({-1}));
  const at::Tensor joined = at::empty({std::ssize(places), largest}, own.options());
  tensor_ranks->all_gather(bytes_of(sent), bytes_of(joined));
  at::Tensor whole = at::empty(whole_shape(parameter), own.options());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const at::Tensor row = joined.select(0, static_cast<int64_t>(rank));
    part_of(whole, places[rank]).copy_(part_of(row, ShardSlice{places[rank], 0}));
  }
  return whole;
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
  // Ranks can differ only in values that several of them hold.
  const auto keep = [&](const StateEntry& entry, const at::Tensor& whole, bool several_hold_it) {
    if (!keeps) return;
    const at::Tensor value = copy_of(whole, options.cpu_offload);
    if (from_rank0 && several_hold_it) source.all->broadcast(bytes_of(value), 0);
    values[entry.name] = value;
  };
  for (const auto& [index, entries] : by_unit) {
    if (index < 0) continue;
    const StateUnit& unit = source.units.at(static_cast<size_t>(index));
    const at::Tensor flat = unit.store->whole(unit.shard);
    const FlatLayout layout = flat_layout(unit.store->spec());
    for (const StateEntry* entry : entries) {
      const ParameterSpec& parameter = parameter_of(source, *entry);
      const at::Tensor own = flat.narrow(0, layout.offsets.at(entry->parameter), parameter.elements());
      const bool copies = source.tensor_ranks != nullptr && !parameter.is_sliced();
      keep(*entry, join_slices(source.tensor_ranks, parameter, own.view(parameter.shape)),
           copies || unit.store->replicas() > 1);
    }
  }
  for (const StateEntry* entry : by_unit[-1]) keep(*entry, entry->whole.contiguous(), true);
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
