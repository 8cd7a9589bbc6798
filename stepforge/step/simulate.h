// SPDX-License-Identifier: Apache-2.0
// When the operations of a step run, predicted from the rates of a machine, and where the time of a step
// went.
#pragma once

#include <string>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

/// The rates of one rank. The defaults are those of no particular machine: they give the shape of a step, not
/// its time.
struct MachineModel {
  std::string name = "model machine";
  double flops_per_second = 1e11;          ///< matrix products
  double memory_bytes_per_second = 2e10;   ///< gradient norm, updates, copies in memory
  double network_bytes_per_second = 1e10;  ///< collectives and messages
  double seconds_per_operation = 5e-6;     ///< overhead of any operation
};

/// From "2000", "2000,50" or "2000,50,10": GFLOP/s, GB/s of the memory, GB/s of the network. Throws
/// UsageError for anything else.
MachineModel parse_machine(const std::string& text);

/// "model machine: 100 GFLOP/s, memory 20 GB/s, network 10 GB/s, 5 us per operation"
std::string machine_text(const MachineModel& machine);

struct OperationTime {
  double start = 0;  ///< seconds from the beginning of the step
  double end = 0;
};

/// One rank, whose partners are always in time. Operations of a lane run one after the other; each starts
/// when its lane is free and what it needs has finished.
std::vector<OperationTime> simulate(const StepProgram& program, const MachineModel& machine);

/// When the last operation ends.
double step_seconds(const std::vector<OperationTime>& times);

/// Where the time of a step went. Seconds, but for hidden_share().
struct LaneReport {
  double total = 0;      ///< from the start of the first operation to the end of the last
  double computing = 0;  ///< operations of the compute lane
  double waiting = 0;    ///< the compute lane waited for another lane
  double outside = 0;    ///< the compute lane could have continued, but no operation ran: executor overhead
  double communicating = 0;  ///< operations of all other lanes: gathers, reductions, copies

  /// The part of `communicating` for which the compute lane did not wait: 0 to 1. Only if communicating > 0.
  double hidden_share() const;
};

/// `times` as simulate() or the executor gives them, one for each operation.
LaneReport lane_report(const StepProgram& program, const std::vector<OperationTime>& times);

/// "80.1 % computing, 15.0 % waiting for other lanes, 4.90 % outside operations; 70 % of gathers, reductions
/// and copies hidden"; the last part only if there were any.
std::string lane_report_text(const LaneReport& report);

/// The rates at which the operations of a step really ran, named `name`. A rate of which the step has no
/// operation keeps its default.
MachineModel measured_machine(const StepProgram& program, const std::vector<OperationTime>& times,
                              std::string name);

}  // namespace stepforge
