// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/measured_costs.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"

namespace stepforge {

namespace {

/// "backward layers" for a backward of layers.3.
std::string key_of(std::string_view kind, std::string_view owner) {
  return format("{} {}", kind, owner.substr(0, owner.find('.')));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// The processes of a trace with measured times: "rank 0, ran".
std::set<int> measured_processes(const Json& events) {
  std::set<int> found;
  for (const Json& event : events) {
    if (event.value("name", "") == "process_name" &&
        event.at("args").at("name").get<std::string>().ends_with(", ran"))
      found.insert(event.at("pid").get<int>());
  }
  return found;
}

void add_event(const Json& event, MeasuredCosts& costs) {
  constexpr double kMicro = 1e-6;
  const Json& arguments = event.at("args");
  if (arguments.contains("peer") || arguments.contains("group") || event.at("tid").get<int>() != 0) return;
  const double flops = arguments.value("flops", 0.0);
  costs.add(event.at("cat").get<std::string>(), arguments.value("of", ""),
            flops > 0 ? flops : arguments.value("bytes", 0.0), event.at("dur").get<double>() * kMicro);
}

}  // namespace

bool is_computation(const Operation& operation) {
  return operation.lane == Lane::compute && operation.group < 0 && operation.peer < 0;
}

double work_amount(const Operation& operation) {
  return operation.flops > 0 ? operation.flops : static_cast<double>(operation.bytes);
}

std::string owner_name(const StepProgram& program, const Operation& operation) {
  if (operation.block >= 0) return element(program.blocks, operation.block).name;
  return operation.unit >= 0 ? element(program.units, operation.unit).name : "";
}

void MeasuredCosts::add(std::string_view kind, std::string_view owner, double amount, double seconds) {
  Samples& samples = samples_[key_of(kind, owner)];
  samples.has_amount = amount > 0;
  samples.seconds.push_back(samples.has_amount ? seconds / amount : seconds);
}

MeasuredCosts MeasuredCosts::from_trace(const std::filesystem::path& path) {
  MeasuredCosts costs;
  try {
    const Json trace = read_json_file(path);
    const Json& events = trace.at("traceEvents");
    const std::set<int> processes = measured_processes(events);
    for (const Json& event : events)
      if (event.at("ph") == "X" && processes.contains(event.at("pid").get<int>())) add_event(event, costs);
  } catch (const Json::exception& error) {
    throw FormatError(format("{}: not a trace of Stepforge: {}", path.string(), error.what()));
  }
  if (costs.empty()) {
    throw FormatError(
        format("{}: the trace has no measured step; make it with `stepforge train --trace`", path.string()));
  }
  return costs;
}

std::optional<double> MeasuredCosts::of_kind(OpKind kind, const std::string& owner, double amount) const {
  const auto found = samples_.find(key_of(op_name(kind), owner));
  if (found == samples_.end()) return {};
  const Samples& samples = found->second;
  return median(samples.seconds) * (samples.has_amount ? amount : 1.0);
}

std::optional<double> MeasuredCosts::seconds(const StepProgram& program, const Operation& operation) const {
  if (samples_.empty() || !is_computation(operation)) return {};
  const std::string owner = owner_name(program, operation);
  const double amount = work_amount(operation);
  if (const auto own = of_kind(operation.kind, owner, amount)) return own;
  switch (operation.kind) {
    case OpKind::backward_input:
    case OpKind::backward_weight:
      return of_kind(OpKind::backward, owner, amount);
    case OpKind::recompute:
      return of_kind(OpKind::forward, owner, amount);
    default:
      return {};
  }
}

}  // namespace stepforge
