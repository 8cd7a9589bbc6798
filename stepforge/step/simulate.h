// Predicts when the operations of a step program run, from a machine's rates. One rank: partners are always
// in time.
#pragma once

#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

struct MachineModel {
  double flops_per_second = 1e11;          ///< matrix products
  double memory_bytes_per_second = 2e10;   ///< gradient norm, updates, copies in memory
  double network_bytes_per_second = 1e10;  ///< collectives and messages
  double seconds_per_operation = 5e-6;     ///< overhead of any operation
};

struct OperationTime {
  double start = 0;  ///< seconds from the beginning of the step
  double end = 0;
};

/// Operations of a lane run one after the other; each starts when its lane is free and what it needs has
/// finished.
std::vector<OperationTime> simulate(const StepProgram& program, const MachineModel& machine);

/// When the last operation ends.
double step_seconds(const std::vector<OperationTime>& times);

}  // namespace stepforge
