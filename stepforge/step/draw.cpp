// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/draw.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/step/memory.h"
#include "stepforge/step/repetition.h"

namespace stepforge {

namespace {

constexpr std::size_t kFoldFrom = 4;  // repetitions

std::string bytes_text(int64_t bytes) {
  return bytes == 0 ? "" : human_bytes(bytes);
}

/// Some operations, with a line for each range between them that is left out.
class Table {
 public:
  Table(const StepProgram& program, const TableOptions& options)
      : program_(program), options_(options), live_after_(account(program).live_after) {}

  std::string draw() {
    for (const Operation& operation : program_.operations) {
      const auto size = static_cast<int64_t>(operation_text(program_, operation).size());
      text_width_ = std::max(text_width_, size);
    }
    text_ += format("{:>7}  {:<7}  {:<{}}  {:>10}  {:>10}  {:>10}\n", "#", "lane", "operation", text_width_,
                    "bytes", "workspace", "live after");
    const std::size_t count = program_.operations.size();
    const auto [skip_begin, skip_end] =
        options_.all_micro_batches ? std::pair(count, count) : later_micro_batches();
    show(0, skip_begin);
    if (skip_begin < skip_end) {
      text_ += format("{:>7}  the same for micro-batches 1 to {}: operations {} to {}\n", "...",
                      program_.micro_batches - (reduces_at_the_end() ? 2 : 1), skip_begin, skip_end - 1);
      show(skip_end, count);
    }
    return std::move(text_);
  }

 private:
  /// Whether the last micro-batch differs from the others.
  bool reduces_at_the_end() const {
    return std::ranges::find(program_.operations, Lane::reduce, &Operation::lane) !=
           program_.operations.end();
  }

  /// From the first operation of micro-batch 1 to the last of any micro-batch, or to the first of the last
  /// micro-batch if that differs from the others.
  std::pair<std::size_t, std::size_t> later_micro_batches() const {
    const auto& operations = program_.operations;
    const auto is_later = [](int micro_batch) { return micro_batch > 0; };
    const auto of_last = std::ranges::find(operations, program_.micro_batches - 1, &Operation::micro_batch);
    const auto first = std::ranges::find_if(operations, is_later, &Operation::micro_batch);
    const auto last = std::find_if(operations.rbegin(), operations.rend(), [&](const Operation& operation) {
      return is_later(operation.micro_batch);
    });
    if (first == operations.end()) return {operations.size(), operations.size()};
    return {static_cast<std::size_t>(first - operations.begin()),
            static_cast<std::size_t>((reduces_at_the_end() ? of_last : last.base()) - operations.begin())};
  }

  static bool alike(const Operation& a, const Operation& b) {
    const auto shown = [](const Operation& operation) {
      return std::tuple(operation.kind, operation.lane, operation.keep_graph, operation.accumulate,
                        operation.bytes, operation.workspace, operation.level, operation.group,
                        operation.peer, operation.exchanges, kinds_of(operation.parts));
    };
    return shown(a) == shown(b);
  }

  void show(std::size_t begin, std::size_t end) {
    const auto equal = [&](std::size_t i, std::size_t j) {
      return alike(program_.operations[i], program_.operations[j]);
    };
    while (begin < end) {
      const auto [length, times] =
          options_.all_repetitions ? Repetition{} : find_repetition(begin, end, kFoldFrom, equal);
      show_lines(begin, begin + length);
      if (times > 1) {
        text_ += format("{:>7}  x {} more of {}\n", "...", times - 2,
                        length == 1 ? "its kind" : format("these {} operations", length));
        show_lines(begin + (times - 1) * length, begin + times * length);
      }
      begin += times * length;
    }
  }

  void show_lines(std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const Operation& operation = program_.operations[i];
      text_ += format("{:>7}  {:<7}  {:<{}}  {:>10}  {:>10}  {:>10}\n", i, lane_name(operation.lane),
                      operation_text(program_, operation), text_width_, bytes_text(total_bytes(operation)),
                      bytes_text(operation.workspace), human_bytes(live_after_[i]));
    }
  }

  const StepProgram& program_;
  TableOptions options_;
  std::vector<int64_t> live_after_;
  int64_t text_width_ = 9;
  std::string text_;
};

double microseconds(double seconds) {
  return seconds * 1e6;
}

Json operation_event(const StepProgram& program, int process, std::size_t index, const OperationTime& time) {
  const Operation& operation = program.operations[index];
  Json arguments = {{"index", index}};
  if (const int64_t bytes = total_bytes(operation); bytes > 0) arguments["bytes"] = bytes;
  if (operation.beside > 0) arguments["bytes beside"] = operation.beside;
  if (operation.workspace > 0) arguments["workspace"] = operation.workspace;
  if (operation.flops > 0) arguments["flops"] = operation.flops;
  if (const std::string owner = owner_name(program, operation); !owner.empty()) arguments["of"] = owner;
  if (operation.group >= 0) arguments["group"] = element(program.groups, operation.group).name;
  if (operation.peer >= 0) arguments["peer"] = operation.peer;
  if (!operation.needs.empty()) arguments["needs"] = operation.needs;
  return {{"name", operation_text(program, operation)},
          {"cat", op_name(operation.kind)},
          {"ph", "X"},
          {"ts", microseconds(time.start)},
          {"dur", microseconds(time.end - time.start)},
          {"pid", process},
          {"tid", static_cast<int>(operation.lane)},
          {"args", std::move(arguments)}};
}

/// An arrow from the end of each operation that another needs to the start of that one. `id`: of the last arrow.
void add_flows(const StepProgram& program, int process, const std::vector<OperationTime>& times, int64_t& id,
               Json& events) {
  const auto end_of_arrow = [&](const char* phase, std::size_t operation, double time) -> Json {
    return {{"name", "needs"},
            {"cat", "needs"},
            {"ph", phase},
            {"id", id},
            {"ts", microseconds(time)},
            {"pid", process},
            {"tid", static_cast<int>(program.operations[operation].lane)}};
  };
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    for (const int need : program.operations[i].needs) {
      ++id;
      const auto from = static_cast<std::size_t>(need);
      // Viewers bind an arrow to the slice around its time, and an end belongs to the next slice.
      constexpr double kWithin = 0.99;
      const double start = times[from].start;
      events.push_back(end_of_arrow("s", from, start + kWithin * (times[from].end - start)));
      events.push_back(end_of_arrow("f", i, times[i].start));
      events.back()["bp"] = "e";
    }
  }
}

void add_names(int process, const std::string& name, Json& events) {
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}});
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", process},
                      {"tid", lane},
                      {"args", {{"name", kLaneNames.at(lane)}}}});
  }
}

/// Live bytes grow when an operation starts and fall when it ends.
void add_live_bytes(const StepProgram& program, int process, const std::vector<OperationTime>& times,
                    Json& events) {
  std::vector<std::pair<double, int64_t>> changes;
  const auto sum = [&](const std::vector<int>& buffers) {
    int64_t bytes = 0;
    for (const int buffer : buffers) bytes += element(program.buffers, buffer).bytes;
    return bytes;
  };
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    changes.emplace_back(times[i].start, sum(operation.allocates) + operation.workspace);
    changes.emplace_back(times[i].end, -sum(operation.frees) - operation.workspace);
  }
  std::ranges::stable_sort(changes, {}, &std::pair<double, int64_t>::first);
  int64_t live = account(program).persistent_bytes();
  for (const auto& [time, change] : changes) {
    live += change;
    if (change != 0) {
      events.push_back({{"name", "live bytes"},
                        {"ph", "C"},
                        {"ts", microseconds(time)},
                        {"pid", process},
                        {"args", {{"bytes", live}}}});
    }
  }
}

/// `flows`: the id of the last arrow.
void add_run(const StepProgram& program, int process, const TracedRun& run, int64_t& flows, Json& events) {
  add_names(process, format("rank {}, {}", program.rank, run.name), events);
  for (std::size_t i = 0; i < program.operations.size(); ++i)
    events.push_back(operation_event(program, process, i, run.times[i]));
  add_flows(program, process, run.times, flows, events);
  add_live_bytes(program, process, run.times, events);
}

std::string trace_text(Json events) {
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump();
}

}  // namespace

std::string operation_table(const StepProgram& program, const TableOptions& options) {
  return Table(program, options).draw();
}

std::string trace_json(const StepProgram& program, const std::vector<TracedRun>& runs) {
  Json events = Json::array();
  int64_t flows = 0;
  for (std::size_t run = 0; run < runs.size(); ++run)
    add_run(program, program.rank * static_cast<int>(runs.size()) + static_cast<int>(run), runs[run], flows,
            events);
  return trace_text(std::move(events));
}

std::string trace_json(std::span<const StepProgram> programs, const std::string& name,
                       const std::vector<std::vector<OperationTime>>& times) {
  Json events = Json::array();
  int64_t flows = 0;
  for (std::size_t p = 0; p < programs.size(); ++p)
    add_run(programs[p], programs[p].rank, {name, times[p]}, flows, events);
  return trace_text(std::move(events));
}

}  // namespace stepforge
