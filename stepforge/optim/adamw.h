// SPDX-License-Identifier: Apache-2.0
// AdamW over flat buffers with fp32 masters and moments: one pass over each interval of parameters with the
// same hyper-parameters, with gradient clipping folded in.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/adamw.h"
#include "stepforge/optim/param_groups.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// The moments of the parameters of one unit, and their update. AdamW and ShardedAdamW are built from it:
/// they choose the intervals and count the steps.
class UnitAdamW {
 public:
  /// The two moments, called slots, under their names in checkpoints: "optim.state.<parameter>.exp_avg".
  static constexpr std::array<std::string_view, 2> kSlotNames = {"exp_avg", "exp_avg_sq"};

  /// `unit` must outlive it.
  explicit UnitAdamW(const UnitStore& unit) : unit_(&unit) {}

  /// Allocates the slots, filled with zeros, unless they exist.
  void allocate();
  /// Flat fp32 [shard_size()]; undefined before allocate().
  const std::array<at::Tensor, 2>& slots() const { return slots_; }

  /// Updates the unit's parameters [first, last) with `gradient`, fp32 [shard_size()].
  void update(size_t first, size_t last, const at::Tensor& gradient, const AdamWOptions& options,
              const UpdateScalars& scalars);

  /// For an offloaded unit: copies the slots to `buffer`, fp32 [2 * shard_size()], on which update() then
  /// works. offload() copies them back.
  void reload(const at::Tensor& buffer);
  void offload();

 private:
  const UnitStore* unit_;
  std::array<at::Tensor, 2> slots_;
  std::array<at::Tensor, 2> working_;  ///< slots_, or the copies on the device of an offloaded unit
};

/// The optimizer of a ModelStore: updates all parameters of all trained units in every step.
class AdamW {
 public:
  static constexpr auto kSlotNames = UnitAdamW::kSlotNames;

  /// `store` must outlive it.
  AdamW(ModelStore& store, ParamGroups groups);

  /// Starts an update: writes its number, steps() + 1, to `scalars`. The others must have their values before
  /// update() is called.
  void begin_update(const UpdateScalars& scalars);
  /// Updates unit `unit`. Call it between begin_update() and end_update(), once per trained unit.
  void update(int unit, const UpdateScalars& scalars);
  /// Counts the update, unless its flag says that it changed nothing.
  void end_update(const UpdateScalars& scalars);

  /// UnitAdamW::reload and offload of unit `unit`.
  void reload(int unit, const at::Tensor& buffer) { units_.at(static_cast<size_t>(unit)).reload(buffer); }
  void offload(int unit) { units_.at(static_cast<size_t>(unit)).offload(); }

  /// The number of finished updates, for checkpoints: the host reads it from the device.
  int64_t steps() const;
  void set_steps(int64_t steps) { steps_.fill_(steps); }
  const ParamGroups& groups() const { return groups_; }
  /// Flat fp32, as large as the unit's shard; undefined for a frozen unit.
  const at::Tensor& slot(size_t unit, size_t slot) const { return units_.at(unit).slots().at(slot); }

 private:
  ModelStore& store_;
  ParamGroups groups_;
  at::Tensor steps_;  ///< scalar
  std::vector<UnitAdamW> units_;
};

}  // namespace stepforge
