// SPDX-License-Identifier: Apache-2.0
// Predicts when the operations of a step run, from the rates of a machine, and reports how a step spent its
// time.
#pragma once

#include <string>
#include <vector>

#include "stepforge/step/machine.h"
#include "stepforge/step/program.h"

namespace stepforge {

struct OperationTime {
  double start = 0;  ///< seconds from the beginning of the step
  double end = 0;
};

/// Simulates one rank that never waits for other ranks. Operations of a lane run one after the other; each
/// starts when its lane is free and its `needs` have finished. simulate_pipeline() lets ranks wait for each
/// other.
std::vector<OperationTime> simulate(const StepProgram& program, const MachineModel& machine);

/// When the last operation ends.
double step_seconds(const std::vector<OperationTime>& times);

/// How a step spent its time, in seconds.
struct LaneReport {
  double total = 0;          ///< from the start of the first operation to the end of the last
  double computing = 0;      ///< operations of the compute lane
  double waiting = 0;        ///< the compute lane waited for another lane
  double outside = 0;        ///< the compute lane was ready, but no operation ran: executor overhead
  double communicating = 0;  ///< operations of all other lanes: gathers, reductions, copies

  /// The fraction of `communicating` for which the compute lane did not wait. Needs communicating > 0.
  double hidden_share() const;
};

/// `times` of all operations, from simulate() or from the executor.
LaneReport lane_report(const StepProgram& program, const std::vector<OperationTime>& times);

/// "80.1 % computing, 15.0 % waiting for other lanes, 4.90 % outside operations; 70 % of gathers, reductions
/// and copies hidden"; the last part only if there were any.
std::string lane_report_text(const LaneReport& report);

/// The measured rates of the operations of a step. A rate that no operation of the step uses keeps its
/// default.
MachineModel measured_machine(const StepProgram& program, const std::vector<OperationTime>& times,
                              std::string name);

}  // namespace stepforge
