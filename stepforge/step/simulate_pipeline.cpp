// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/simulate_pipeline.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// Operations that run at the same time: the two ends of a message, or a collective.
struct Meeting {
  std::size_t members = 0;
  std::vector<OperationPlace> arrived;
  double ready = 0;     ///< when the last one came
  OperationPlace last;  ///< what the last one waited for
};

/// A program on its way.
struct Runner {
  std::array<std::vector<int>, kLanes> queue;  // the operations of each lane, in order
  std::array<std::size_t, kLanes> next{};
  std::vector<Meeting*> meeting;  // of each operation; null: it runs alone
  std::vector<bool> came;         // to its meeting
  std::vector<bool> done;
  std::vector<OperationPlace> cause;  // what each operation waited for last
};

class Simulation {
 public:
  Simulation(std::span<const StepProgram> programs, const MachineModel& machine)
      : programs_(programs), machine_(machine), runners_(programs.size()) {
    for (std::size_t p = 0; p < programs.size(); ++p) {
      program_of_[programs[p].rank] = p;
      run_.times.emplace_back(programs[p].operations.size());
    }
    for (std::size_t p = 0; p < programs.size(); ++p) prepare(p);
  }

  PipelineRun run() {
    for (std::size_t p = 0; p < runners_.size(); ++p) ready_.push_back(p);
    while (!ready_.empty()) {
      const std::size_t p = ready_.front();
      ready_.pop_front();
      advance(p);
    }
    check_done();
    find_critical_path();
    return std::move(run_);
  }

 private:
  void prepare(std::size_t p) {
    const StepProgram& program = programs_[p];
    Runner& runner = runners_[p];
    const std::size_t count = program.operations.size();
    runner.meeting.resize(count, nullptr);
    runner.came.resize(count, false);
    runner.done.resize(count, false);
    runner.cause.resize(count);
    std::map<std::string, std::size_t> counts;  // of the meetings of each channel or group
    for (std::size_t i = 0; i < count; ++i) {
      const Operation& operation = program.operations[i];
      runner.queue.at(static_cast<std::size_t>(operation.lane)).push_back(static_cast<int>(i));
      const auto [key, members] = meeting_of(program, operation);
      if (members < 2) continue;
      Meeting& meeting = meetings_[{key, counts[key]++}];
      meeting.members = members;
      runner.meeting[i] = &meeting;
    }
  }

  /// The name of the channel or group over which an operation meets others, and how many of the programs do.
  std::pair<std::string, std::size_t> meeting_of(const StepProgram& program,
                                                 const Operation& operation) const {
    if (programs_.size() == 1) return {"", 1};
    if (has_trait(operation.kind, kHasPeer)) {
      const bool sends = sends_message(operation.kind);
      return {format("from {} to {}", sends ? program.rank : operation.peer,
                     sends ? operation.peer : program.rank),
              1 + program_of_.count(operation.peer)};
    }
    if (operation.group < 0) return {"", 1};
    const RankGroup& group = element(program.groups, operation.group);
    std::size_t members = 0;
    for (const int rank : group.ranks) members += program_of_.count(rank);
    return {format("{} {}", lane_name(operation.lane), group_key(group)), members};
  }

  void advance(std::size_t p) {
    Runner& runner = runners_[p];
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        while (runner.next.at(lane) < runner.queue.at(lane).size() && try_to_run(p, lane)) moved = true;
      }
    }
  }

  /// Whether the next operation of the lane ran.
  bool try_to_run(std::size_t p, std::size_t lane) {
    Runner& runner = runners_[p];
    const int i = element(runner.queue.at(lane), static_cast<int>(runner.next.at(lane)));
    const Operation& operation = element(programs_[p].operations, i);
    for (const int needed : operation.needs)
      if (!element(runner.done, needed)) return false;
    const auto [ready, cause] = ready_time(p, lane, operation);
    Meeting* meeting = element(runner.meeting, i);
    const OperationPlace self{static_cast<int>(p), i};
    if (meeting == nullptr) {
      finish(self, ready, cause);
      return true;
    }
    if (element(runner.came, i)) return false;
    element(runner.came, i) = true;
    meeting->arrived.push_back(self);
    if (meeting->arrived.size() == 1 || ready > meeting->ready) {
      meeting->ready = ready;
      meeting->last = cause;
    }
    if (meeting->arrived.size() < meeting->members) return false;
    for (const OperationPlace& member : meeting->arrived) {
      finish(member, meeting->ready, meeting->last);
      ready_.push_back(static_cast<std::size_t>(member.program));
    }
    return true;
  }

  /// When the operation may start, and what it waits for until then.
  std::pair<double, OperationPlace> ready_time(std::size_t p, std::size_t lane,
                                               const Operation& operation) const {
    double ready = 0;
    OperationPlace cause;
    const auto wait_for = [&](int other) {
      const double end = element(run_.times[p], other).end;
      if (cause.program >= 0 && end <= ready) return;
      ready = end;
      cause = {static_cast<int>(p), other};
    };
    const Runner& runner = runners_[p];
    if (const std::size_t next = runner.next.at(lane); next > 0) wait_for(runner.queue.at(lane)[next - 1]);
    for (const int needed : operation.needs) wait_for(needed);
    return {ready, cause};
  }

  void finish(const OperationPlace& place, double start, const OperationPlace& cause) {
    const Operation& operation = element(element(programs_, place.program).operations, place.operation);
    Runner& runner = element(runners_, place.program);
    element(element(run_.times, place.program), place.operation) = {
        start, start + operation_seconds(operation, machine_)};
    element(runner.done, place.operation) = true;
    element(runner.cause, place.operation) = cause;
    ++runner.next.at(static_cast<std::size_t>(operation.lane));
  }

  void check_done() const {
    for (std::size_t p = 0; p < runners_.size(); ++p) {
      const auto waiting = std::ranges::find(runners_[p].done, false);
      if (waiting == runners_[p].done.end()) continue;
      const auto i = static_cast<std::size_t>(waiting - runners_[p].done.begin());
      throw Error(format("the programs wait for each other in a cycle: rank {} does not get past {}",
                         programs_[p].rank, operation_text(programs_[p], programs_[p].operations[i])));
    }
  }

  void find_critical_path() {
    OperationPlace place;
    double last = -1;
    for (std::size_t p = 0; p < run_.times.size(); ++p) {
      for (std::size_t i = 0; i < run_.times[p].size(); ++i) {
        if (run_.times[p][i].end <= last) continue;
        last = run_.times[p][i].end;
        place = {static_cast<int>(p), static_cast<int>(i)};
      }
    }
    for (; place.program >= 0; place = element(element(runners_, place.program).cause, place.operation))
      run_.critical_path.push_back(place);
    std::ranges::reverse(run_.critical_path);
  }

  std::span<const StepProgram> programs_;
  const MachineModel& machine_;
  std::vector<Runner> runners_;
  std::map<int, std::size_t> program_of_;                            // by rank
  std::map<std::pair<std::string, std::size_t>, Meeting> meetings_;  // by name and number
  std::deque<std::size_t> ready_;                                    // programs that may go on
  PipelineRun run_;
};

/// What an operation on the critical path is.
std::string work_name(const Operation& operation) {
  if (is_pipeline_lane(operation.lane)) return "messages between stages";
  switch (operation.kind) {
    case OpKind::forward:
    case OpKind::recompute:
    case OpKind::backward:
      return std::string(op_name(operation.kind));
    case OpKind::loss:
    case OpKind::loss_forward_backward:
      return "loss";
    case OpKind::backward_input:
      return "input gradients";
    case OpKind::backward_weight:
      return "weight gradients";
    case OpKind::update:
      return "updates";
    default:
      return operation.group >= 0 ? "collectives" : "other";
  }
}

}  // namespace

double PipelineRun::seconds() const {
  double last = 0;
  for (const std::vector<OperationTime>& of_program : times) last = std::max(last, step_seconds(of_program));
  return last;
}

PipelineRun simulate_pipeline(std::span<const StepProgram> programs, const MachineModel& machine) {
  return Simulation(programs, machine).run();
}

double bubble_share(std::span<const StepProgram> programs, const PipelineRun& run, std::size_t program) {
  const double seconds = run.seconds();
  return seconds > 0 ? 1 - lane_report(programs[program], run.times[program]).computing / seconds : 0;
}

double bubble_share(std::span<const StepProgram> programs, const PipelineRun& run) {
  double sum = 0;
  for (std::size_t p = 0; p < programs.size(); ++p) sum += bubble_share(programs, run, p);
  return sum / static_cast<double>(programs.size());
}

std::string critical_path_text(std::span<const StepProgram> programs, const PipelineRun& run) {
  std::map<std::string, double> seconds;
  for (const OperationPlace& place : run.critical_path) {
    const OperationTime& time = element(element(run.times, place.program), place.operation);
    seconds[work_name(element(element(programs, place.program).operations, place.operation))] +=
        time.end - time.start;
  }
  std::vector<std::pair<double, std::string>> shares;
  double rest = 0;
  constexpr double kSmallest = 0.5;  // percent
  for (const auto& [name, part] : seconds) {
    const double percent = 100 * part / run.seconds();
    if (percent < kSmallest || name == "other")
      rest += percent;
    else
      shares.emplace_back(percent, name);
  }
  std::ranges::stable_sort(shares, std::greater<>{}, &std::pair<double, std::string>::first);
  std::vector<std::string> texts;
  for (const auto& [percent, name] : shares) texts.push_back(format("{} {:.0f} %", name, percent));
  if (rest >= kSmallest) texts.push_back(format("other {:.0f} %", rest));
  return join(texts, ", ");
}

}  // namespace stepforge
