// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/simulate.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <sstream>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/simulate_pipeline.h"

namespace stepforge {

namespace {

bool is_message(const Operation& operation) {
  return operation.group >= 0 || operation.peer >= 0;
}

}  // namespace

MachineModel parse_machine(const std::string& text) {
  MachineModel machine;
  machine.name = "given machine";
  const std::array rates = {&machine.flops_per_second, &machine.memory_bytes_per_second,
                            &machine.network_bytes_per_second};
  std::istringstream stream(text);
  std::size_t count = 0;
  for (std::string part; std::getline(stream, part, ','); ++count) {
    char* end = nullptr;
    const double rate = std::strtod(part.c_str(), &end);
    const bool is_rate = !part.empty() && *end == '\0' && rate > 0 && rate < 1e12;
    if (count < rates.size() && is_rate) {
      *rates.at(count) = rate * 1e9;
      continue;
    }
    count = 0;
    break;
  }
  if (count == 0) {
    throw UsageError(
        format("machine rates \"{}\": expected one to three positive numbers, GFLOP/s[,memory GB/s[,network "
               "GB/s]], such as 2000,50,10",
               text));
  }
  return machine;
}

std::string machine_text(const MachineModel& machine) {
  return format("{}: {:.4g} GFLOP/s, memory {:.4g} GB/s, network {:.4g} GB/s, {:.3g} us per operation",
                machine.name, machine.flops_per_second / 1e9, machine.memory_bytes_per_second / 1e9,
                machine.network_bytes_per_second / 1e9, machine.seconds_per_operation * 1e6);
}

double operation_seconds(const Operation& operation, const MachineModel& machine) {
  const double rate =
      is_message(operation) ? machine.network_bytes_per_second : machine.memory_bytes_per_second;
  const int64_t alone = total_bytes(operation) - operation.bytes - operation.beside;
  const double computing = std::max(operation.flops / machine.flops_per_second,
                                    static_cast<double>(operation.beside) / machine.network_bytes_per_second);
  return machine.seconds_per_operation + computing + static_cast<double>(operation.bytes) / rate +
         static_cast<double>(alone) / machine.network_bytes_per_second;
}

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
    else if (operation.bytes > 0)
      (is_message(operation) ? network : memory).add(static_cast<double>(operation.bytes), seconds);
  }
  MachineModel machine;
  machine.name = std::move(name);
  machine.flops_per_second = flops.rate_or(machine.flops_per_second);
  machine.memory_bytes_per_second = memory.rate_or(machine.memory_bytes_per_second);
  machine.network_bytes_per_second = network.rate_or(machine.network_bytes_per_second);
  machine.seconds_per_operation = 0;
  return machine;
}

}  // namespace stepforge
