// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/simulate.h"

#include <algorithm>
#include <span>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/simulate_pipeline.h"

namespace stepforge {

std::vector<OperationTime> simulate(const StepProgram& program, const MachineModel& machine) {
  return std::move(simulate_pipeline(std::span(&program, 1), machine).times.front());
}

double step_seconds(const std::vector<OperationTime>& times) {
  double last = 0;
  for (const OperationTime& time : times) last = std::max(last, time.end);
  return last;
}

double LaneReport::hidden_share() const {
  return std::clamp(1.0 - waiting / communicating, 0.0, 1.0);
}

LaneReport lane_report(const StepProgram& program, const std::vector<OperationTime>& times) {
  LaneReport report;
  double free = 0;  // when the compute lane became free
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Operation& operation = program.operations[i];
    report.total = std::max(report.total, times[i].end);
    if (operation.lane != Lane::compute) {
      report.communicating += times[i].end - times[i].start;
      continue;
    }
    double needed = free;
    for (const int other : operation.needs) needed = std::max(needed, element(times, other).end);
    const double ready = std::min(needed, times[i].start);
    report.waiting += ready - free;
    report.outside += times[i].start - ready;
    report.computing += times[i].end - times[i].start;
    free = times[i].end;
  }
  return report;
}

std::string lane_report_text(const LaneReport& report) {
  const auto percent = [&report](double seconds) { return 100.0 * seconds / report.total; };
  std::string text =
      format("{:.1f} % computing, {:.1f} % waiting for other lanes, {:.2f} % outside operations",
             percent(report.computing), percent(report.waiting), percent(report.outside));
  if (report.communicating > 0)
    text += format("; {:.0f} % of gathers, reductions and copies hidden", 100.0 * report.hidden_share());
  return text;
}

MachineModel measured_machine(const StepProgram& program, const std::vector<OperationTime>& times,
                              std::string name) {
  struct Work {
    double amount = 0;
    double seconds = 0;
    void add(double more, double duration) { amount += more, seconds += duration; }
    double rate_or(double otherwise) const {
      return amount > 0 && seconds > 0 ? amount / seconds : otherwise;
    }
  };
  Work flops;
  Work memory;
  Work network;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Operation& operation = program.operations[i];
    const double seconds = times[i].end - times[i].start;
    if (operation.flops > 0)
      flops.add(operation.flops, seconds);
    else if (operation.bytes > 0 && (operation.group >= 0 || operation.peer >= 0))
      network.add(sent_bytes(program, operation), seconds);
    else if (operation.bytes > 0)
      memory.add(static_cast<double>(operation.bytes), seconds);
  }
  MachineModel machine;
  machine.name = std::move(name);
  machine.flops_per_second = flops.rate_or(machine.flops_per_second);
  machine.memory_bytes_per_second = memory.rate_or(machine.memory_bytes_per_second);
  machine.network.bytes_per_second = network.rate_or(machine.network.bytes_per_second);
  machine.seconds_per_operation = 0;
  return machine;
}

}  // namespace stepforge
