// SPDX-License-Identifier: Apache-2.0
// The machines for which a job is planned, from [machine] of its configuration.
#pragma once

#include <optional>
#include <string>

#include "stepforge/config/load.h"
#include "stepforge/plan/memory_fit.h"
#include "stepforge/step/machine_spec.h"

namespace stepforge {

struct PlannedMachine {
  std::optional<MachineSpec> spec;  ///< not set: no machine is named
  int ranks = 1;                    ///< of the job

  /// The rates of each rank; those of MachineModel if no machine is named.
  MachineModel model(DType compute) const;
  /// What the runtime leaves of a device's memory. Throws UsageError if its size is not known. For a machine that is named.
  MemoryBudget memory() const;
};

/// The machine of [machine], with a rank on each device of `machine.hosts` hosts, or `ranks` of them; 0: not given. Throws
/// UsageError if there is no such machine, or if both numbers are given and contradict.
PlannedMachine plan_machine(const LoadedConfig& loaded, int ranks);

}  // namespace stepforge
