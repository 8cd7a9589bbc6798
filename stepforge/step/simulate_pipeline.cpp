// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/simulate_pipeline.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
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
};

/// A program while it is simulated.
struct Runner {
  std::array<std::vector<int>, kLanes> queue;  // the operations of each lane, in order
  std::array<std::size_t, kLanes> next{};      // of the queue: the one that runs or waits
  std::vector<Meeting*> meeting;               // of each operation; null: it runs alone
  std::vector<bool> came;                      // to run, or to its meeting
  std::vector<bool> done;
  std::vector<OperationPlace> cause;  // what each operation waited for last
};

/// An operation that runs.
struct Running {
  OperationPlace place;
  double end = 0;
};

/// The computations of the ranks of one host, which share its cores evenly.
class Host {
 public:
  explicit Host(int cores) : cores_(cores) {}

  const std::vector<Running>& running() const { return running_; }

  void start(const OperationPlace& place, double now, double seconds) {
    set_number(running_.size() + 1, now);
    running_.push_back({place, now + seconds / speed_});
  }

  /// Removes those that end now.
  std::vector<OperationPlace> finish(double now) {
    std::vector<OperationPlace> finished;
    std::erase_if(running_, [&](const Running& one) {
      if (one.end > now) return false;
      finished.push_back(one.place);
      return true;
    });
    if (!finished.empty()) set_number(running_.size(), now);
    return finished;
  }

 private:
  /// From now on `number` computations share the cores; rescales the remaining time of each.
  void set_number(std::size_t number, double now) {
    const double before = speed_;
    speed_ = cores_ > 0 && number > 0 ? std::min(1.0, cores_ / static_cast<double>(number)) : 1.0;
    if (speed_ == before) return;
    for (Running& one : running_) one.end = now + (one.end - now) * before / speed_;
  }

  int cores_;
  double speed_ = 1;
  std::vector<Running> running_;
};

/// Advances from one end of operations to the next, and starts the operations that may start then.
class Simulation {
 public:
  Simulation(std::span<const StepProgram> programs, const MachineModel& machine)
      : programs_(programs), machine_(machine), runners_(programs.size()) {
    for (std::size_t p = 0; p < programs.size(); ++p) {
      program_of_[programs[p].rank] = p;
      run_.times.emplace_back(programs[p].operations.size());
      hosts_.try_emplace(machine.host_of(programs[p].rank), machine.cores);
    }
    for (std::size_t p = 0; p < programs.size(); ++p) prepare(p);
  }

  PipelineRun run() {
    for (std::size_t p = 0; p < runners_.size(); ++p) advance(p);
    while (const std::optional<double> next = next_end()) {
      now_ = *next;
      finish_all();
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

  /// Starts the operations that the program can start now.
  void advance(std::size_t p) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) try_to_start(p, lane);
  }

  void try_to_start(std::size_t p, std::size_t lane) {
    Runner& runner = runners_[p];
    const std::size_t next = runner.next.at(lane);
    if (next == runner.queue.at(lane).size()) return;
    const int i = runner.queue.at(lane)[next];
    const Operation& operation = element(programs_[p].operations, i);
    if (element(runner.came, i)) return;
    for (const int needed : operation.needs)
      if (!element(runner.done, needed)) return;
    element(runner.came, i) = true;
    const OperationPlace self{static_cast<int>(p), i};
    const OperationPlace cause = last_wait(p, lane, operation);
    Meeting* meeting = element(runner.meeting, i);
    if (meeting == nullptr) return start(self, cause);
    meeting->arrived.push_back(self);
    if (meeting->arrived.size() < meeting->members) return;
    for (const OperationPlace& member : meeting->arrived) start(member, cause);
  }

  /// The operation that this one waited for last.
  OperationPlace last_wait(std::size_t p, std::size_t lane, const Operation& operation) const {
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
    return cause;
  }

  void start(const OperationPlace& place, const OperationPlace& cause) {
    const StepProgram& program = element(programs_, place.program);
    const Operation& operation = element(program.operations, place.operation);
    element(element(runners_, place.program).cause, place.operation) = cause;
    element(element(run_.times, place.program), place.operation).start = now_;
    const double seconds = operation_seconds(program, operation, machine_);
    if (is_computation(operation))
      hosts_.at(machine_.host_of(program.rank)).start(place, now_, seconds);
    else
      running_.emplace(now_ + seconds, place);
  }

  std::optional<double> next_end() const {
    std::optional<double> next;
    const auto consider = [&](double end) { next = std::min(next.value_or(end), end); };
    if (!running_.empty()) consider(running_.begin()->first);
    for (const auto& [number, host] : hosts_)
      for (const Running& one : host.running()) consider(one.end);
    return next;
  }

  /// Ends the operations that end now, so that those that waited for them may start.
  void finish_all() {
    std::vector<OperationPlace> finished;
    while (!running_.empty() && running_.begin()->first <= now_) {
      finished.push_back(running_.begin()->second);
      running_.erase(running_.begin());
    }
    for (auto& [number, host] : hosts_) std::ranges::copy(host.finish(now_), std::back_inserter(finished));
    std::set<int> moved;
    for (const OperationPlace& place : finished) {
      Runner& runner = element(runners_, place.program);
      const Operation& operation = element(element(programs_, place.program).operations, place.operation);
      element(element(run_.times, place.program), place.operation).end = now_;
      element(runner.done, place.operation) = true;
      ++runner.next.at(static_cast<std::size_t>(operation.lane));
      moved.insert(place.program);
    }
    for (const int program : moved) advance(static_cast<std::size_t>(program));
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
  std::map<int, Host> hosts_;
  std::multimap<double, OperationPlace> running_;  // what needs no core, by end
  double now_ = 0;
  PipelineRun run_;
};

/// The kind of work of an operation on the critical path.
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
