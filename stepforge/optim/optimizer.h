// SPDX-License-Identifier: Apache-2.0
// The optimizer of a model over flat buffers with fp32 masters: one pass over each interval of parameters with the same
// hyper-parameters, with gradient clipping folded in.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/optim/param_groups.h"
#include "stepforge/optim/unit_state.h"

namespace stepforge {

/// Updates all parameters of all trained units of a ModelStore in every step.
class Optimizer {
 public:
  /// `store` must outlive it.
  Optimizer(ModelStore& store, ParamGroups groups);

  /// Starts an update: writes its number, steps() + 1, to `scalars`. The others must have their values before
  /// update() is called.
  void begin_update(const UpdateScalars& scalars);
  /// Updates unit `unit`. Call it between begin_update() and end_update(), once per trained unit.
  void update(int unit, const UpdateScalars& scalars);
  /// Counts the update, unless its flag says that it changed nothing.
  void end_update(const UpdateScalars& scalars);

  /// UnitState::reload and offload of unit `unit`.
  void reload(int unit, const at::Tensor& buffer) { units_.at(static_cast<size_t>(unit)).reload(buffer); }
  void offload(int unit) { units_.at(static_cast<size_t>(unit)).offload(); }

  /// The number of finished updates, for checkpoints: the host reads it from the device.
  int64_t steps() const;
  void set_steps(int64_t steps) { steps_.fill_(steps); }
  const ParamGroups& groups() const { return groups_; }
  const UnitState& state(size_t unit) const { return units_.at(unit); }
  /// Flat, with a value for each element of the unit's shard if all of its parameters have the slot and it has no blocks.
  const at::Tensor& slot(size_t unit, size_t slot) const { return units_.at(unit).slots().at(slot); }

 private:
  ModelStore& store_;
  ParamGroups groups_;
  at::Tensor steps_;  ///< scalar
  std::vector<UnitState> units_;
};

}  // namespace stepforge
