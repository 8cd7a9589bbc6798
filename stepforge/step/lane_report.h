// Where the time of a step went: read from the times of its operations, predicted or recorded.
#pragma once

#include <vector>

#include "stepforge/step/program.h"
#include "stepforge/step/simulate.h"

namespace stepforge {

/// Seconds, but for `hidden_share`.
struct LaneReport {
  double total = 0;          ///< from the start of the first operation to the end of the last
  double computing = 0;      ///< the compute lane's operations
  double waiting = 0;        ///< the compute lane had nothing to do until another lane had finished
  double outside = 0;        ///< it could have gone on, but no operation ran: what the executor costs
  double communicating = 0;  ///< operations of all other lanes: gathers, reductions, copies
  double hidden_share = 1;   ///< of that, how much the compute lane did not wait for: 0 to 1
};

/// `times` as simulate() or the executor gives them, one for each operation.
LaneReport lane_report(const StepProgram& program, const std::vector<OperationTime>& times);

}  // namespace stepforge
