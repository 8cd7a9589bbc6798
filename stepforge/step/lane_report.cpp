#include "stepforge/step/lane_report.h"

#include <algorithm>

namespace stepforge {

LaneReport lane_report(const StepProgram& program, const std::vector<OperationTime>& times) {
  LaneReport report;
  double free = 0;  // since when the compute lane could go on
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Operation& operation = program.operations[i];
    report.total = std::max(report.total, times[i].end);
    if (operation.lane != Lane::compute) {
      report.communicating += times[i].end - times[i].start;
      continue;
    }
    double needed = free;
    for (const int other : operation.needs)
      needed = std::max(needed, times[static_cast<std::size_t>(other)].end);
    const double ready = std::min(needed, times[i].start);
    report.waiting += ready - free;
    report.outside += times[i].start - ready;
    report.computing += times[i].end - times[i].start;
    free = times[i].end;
  }
  if (report.communicating > 0)
    report.hidden_share = std::clamp(1.0 - report.waiting / report.communicating, 0.0, 1.0);
  return report;
}

}  // namespace stepforge
