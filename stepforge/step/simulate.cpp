#include "stepforge/step/simulate.h"

#include <algorithm>
#include <array>

namespace stepforge {

namespace {

double duration(const Operation& operation, const MachineModel& machine) {
  const bool is_message = operation.group >= 0 || operation.peer >= 0;
  const double rate = is_message ? machine.network_bytes_per_second : machine.memory_bytes_per_second;
  return machine.seconds_per_operation + operation.flops / machine.flops_per_second +
         static_cast<double>(operation.bytes) / rate;
}

}  // namespace

std::vector<OperationTime> simulate(const StepProgram& program, const MachineModel& machine) {
  std::vector<OperationTime> times;
  times.reserve(program.operations.size());
  std::array<double, 5> lane_free{};
  for (const Operation& operation : program.operations) {
    double& free = lane_free.at(static_cast<std::size_t>(operation.lane));
    double start = free;
    for (const int needed : operation.needs)
      start = std::max(start, times[static_cast<std::size_t>(needed)].end);
    free = start + duration(operation, machine);
    times.push_back({start, free});
  }
  return times;
}

double step_seconds(const std::vector<OperationTime>& times) {
  double last = 0;
  for (const OperationTime& time : times) last = std::max(last, time.end);
  return last;
}

}  // namespace stepforge
