// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/attempt.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/interrupt.h"
#include "stepforge/base/log.h"
#include "stepforge/base/threads.h"
#include "stepforge/launch/rank_environment.h"

namespace stepforge {

namespace {

constexpr int kUsageCode = static_cast<int>(ExitCode::usage);
constexpr int kInterruptedCode = static_cast<int>(ExitCode::interrupted);

/// The environment of one rank: that of this process, and the variables that describe the rank.
std::vector<std::string> environment_of(int local_rank, const AttemptOptions& options, bool has_terminal) {
  const LaunchOptions& launch = options.launch;
  const int rank = options.rank_of(local_rank);
  std::map<std::string, std::string> overrides = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", std::to_string(options.world_size())},
      {"LOCAL_WORLD_SIZE", std::to_string(launch.processes)},
      {"GROUP_RANK", std::to_string(launch.node)},
      {"GROUP_WORLD_SIZE", std::to_string(launch.nodes)},
      {"MASTER_ADDR", options.rendezvous.host},
      {"MASTER_PORT", std::to_string(options.rendezvous.port)},
      {"TORCHELASTIC_RUN_ID", options.launch_id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(options.restart)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(launch.max_restarts)},
      {"STEPFORGE_LAUNCH_ID", options.launch_id}};
  if (rank == 0 && options.store_listener >= 0) {
    overrides["STEPFORGE_STORE_LISTENER"] = std::to_string(options.store_listener);
  }
  if (has_terminal) overrides[kStderrColumnsVariable] = std::to_string(terminal_columns(STDERR_FILENO));
  if (getenv("OMP_NUM_THREADS") == nullptr) {
    overrides["OMP_NUM_THREADS"] = std::to_string(std::max(1, hardware_threads() / launch.processes));
  }
  // Set by an outer launcher for its own ranks.
  const std::set<std::string> removed = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
                                         "STEPFORGE_STORE_LISTENER", kStderrColumnsVariable};
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string name(text.substr(0, text.find('=')));
    if (!overrides.contains(name) && !removed.contains(name)) variables.emplace_back(text);
  }
  for (const auto& [name, value] : overrides) variables.push_back(format("{}={}", name, value));
  return variables;
}

/// A watch of the job, by the name that the ranks find in their environment.
std::unique_ptr<StoreWatch> watch_of(const AttemptOptions& options) {
  const std::vector<std::string> variables = environment_of(0, options, false);
  const RankEnvironment ranks = discover_ranks([&](const std::string& name) -> std::optional<std::string> {
    for (const std::string& variable : variables) {
      if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
    }
    return std::nullopt;
  });
  return std::make_unique<StoreWatch>(StoreWatch::Options{
      options.rendezvous, ranks.run_id, options.launch.ask_seconds, options.launch.silent_seconds});
}

std::filesystem::path log_path(const LaunchOptions& options, int rank, int restart) {
  const std::string suffix = restart == 0 ? "" : format(".restart-{}", restart);
  return options.log_folder / format("rank-{}{}.log", rank, suffix);
}

}  // namespace

Attempt::Attempt(const AttemptOptions& options, const Signals& signals, const std::set<int>& shown)
    : options_(options),
      signals_(signals),
      shown_(shown),
      terminal_(shown, shown.size() == 1 && stderr_is_terminal()) {
  for (int local = 0; local < options.launch.processes; ++local) {
    const int rank = options.rank_of(local);
    const bool has_terminal = terminal_.shares_terminal() && shown.contains(rank);
    ranks_.push_back(std::make_unique<ChildProcess>(
        ChildProcess::Start{rank, options.launch.command, environment_of(local, options, has_terminal),
                            log_path(options.launch, rank, options.restart), signals.before(),
                            rank == 0 ? options.store_listener : -1}));
  }
  // Threads may begin only after the last fork().
  if (options.launch.nodes > 1) watch_ = watch_of(options);
}

AttemptOutcome Attempt::run() {
  while (is_any_running()) {
    wait_for_events();
    forward_signals();
    for (int local = 0; local < options_.launch.processes; ++local) show_output(local);
    reap();
    notice_end_of_job();
    signal_late_ranks();
  }
  terminal_.finish();
  if (failed_.empty()) return {0, interrupted_, "", notice_};
  return {*cause().exit_code(), interrupted_, report_of(cause()), notice_};
}

bool Attempt::is_any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& child) { return child->is_running(); });
}

void Attempt::wait_for_events() {
  polled_.assign(1, {signals_.descriptor(), POLLIN, 0});
  for (const auto& child : ranks_) {
    for (const int pipe : child->pipes()) {
      if (pipe >= 0) polled_.push_back({pipe, POLLIN, 0});
    }
  }
  if (watch_ != nullptr) polled_.push_back({watch_->descriptor(), POLLIN, 0});
  // While a signal is scheduled, wake up often enough to send it on time.
  poll(polled_.data(), polled_.size(), next_signal_ != 0 ? 50 : -1);
}

void Attempt::forward_signals() {
  while (const int number = signals_.next()) {
    if (number == SIGCHLD) continue;
    interrupted_ = true;
    signal_all(number);
    if (is_notice_of_end(number)) continue;  // its sender decides when the end comes
    signal_after(SIGTERM, options_.launch.interrupt_seconds);
  }
}

void Attempt::signal_all(int number) {
  if (!is_notice_of_end(number)) ++sent_;
  for (const auto& child : ranks_) child->signal(number, sent_);
}

/// Shows the new output of a rank. Returns false if there is none.
bool Attempt::show_output(int local_rank) {
  ChildProcess& child = *ranks_[static_cast<std::size_t>(local_rank)];
  const std::vector<ChildOutput> outputs = child.read_output();
  for (const ChildOutput& output : outputs) terminal_.show(child.rank(), output);
  return !outputs.empty();
}

void Attempt::reap() {
  for (int local = 0; local < options_.launch.processes; ++local) {
    ChildProcess& child = *ranks_[static_cast<std::size_t>(local)];
    if (!child.reap()) continue;
    // Show the rest of its output, in a few reads only: a process that it started may still write to the
    // pipe.
    for (int i = 0; i < 8 && show_output(local); ++i) {
    }
    const int code = *child.exit_code();
    if (code != 0) failed_.push_back(&child);
    const bool was_interrupted = code == kInterruptedCode && !child.was_killed();
    interrupted_ = interrupted_ || was_interrupted;  // also if only this rank received the signal
    if (code != 0 && !was_interrupted) {
      signal_after(SIGTERM, options_.launch.notice_seconds);
    } else if (interrupted_) {
      signal_after(SIGTERM, options_.launch.straggler_seconds);
    }
  }
}

/// Schedules a signal to the ranks that are still running after `seconds`. An earlier one that is already
/// scheduled keeps its time, and SIGKILL is never replaced.
void Attempt::signal_after(int number, double seconds) {
  if (next_signal_ == SIGKILL) return;
  const auto at =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  next_signal_ = number;
  signal_at_ = number == SIGKILL ? at : std::min(at, signal_at_);
}

void Attempt::signal_late_ranks() {
  if (next_signal_ == 0 || Clock::now() < signal_at_) return;
  if (!end_of_job_.empty() && failed_.empty() && notice_.empty()) notice_ = ended_text();
  killed_ = killed_ || next_signal_ == SIGKILL;
  signal_all(next_signal_);
  if (next_signal_ == SIGTERM) signal_after(SIGKILL, options_.launch.grace_seconds);
}

/// Ends ranks that still run long after the job has ended elsewhere. They are stuck: the job's store has told the others.
void Attempt::notice_end_of_job() {
  if (watch_ == nullptr || watch_->reason().empty()) return;
  end_of_job_ = watch_->reason();
  watch_.reset();
  signal_after(SIGTERM, options_.launch.ended_seconds);
}

std::string Attempt::ended_text() const {
  std::vector<std::string> running;
  for (const auto& child : ranks_) {
    if (child->is_running()) running.push_back(std::to_string(child->rank()));
  }
  return format("the job has ended elsewhere: {}; {} {} of this host still ran {} s later and {} ended\n",
                end_of_job_, running.size() == 1 ? "rank" : "ranks", join(running, ", "),
                options_.launch.ended_seconds, running.size() == 1 ? "was" : "were");
}

/// The rank whose failure is reported: the first usage error if there is one, because a restart cannot fix
/// it, else the first failure.
const ChildProcess& Attempt::cause() const {
  const auto usage = std::find_if(failed_.begin(), failed_.end(),
                                  [](const ChildProcess* child) { return child->exit_code() == kUsageCode; });
  return usage == failed_.end() ? *failed_.front() : **usage;
}

std::string Attempt::report_of(const ChildProcess& failed) const {
  const int code = *failed.exit_code();
  std::string how = format("failed with exit code {}", code);
  if (failed.was_killed()) {
    how = format("was killed by signal {} ({})", code - 128, sigdescr_np(code - 128));
    if (code - 128 == SIGKILL && !killed_) how += ", often because the system ran out of memory";
  }
  const std::string erase = terminal_.shares_terminal() ? "\r\x1b[K" : "";  // overwrites a status line
  const std::string text = format("{}rank {} of {} {}; its log is {}", erase, failed.rank(),
                                  options_.world_size(), how, failed.log().string());
  const std::string lines = failed.tail();
  if (lines.empty()) return text + "; it is empty\n";
  // The lines are left out if the same error is already on the terminal, printed by a shown rank.
  const std::string last = lines.substr(lines.rfind('\n') + 1);
  const bool was_shown = std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& child) {
    return shown_.contains(child->rank()) && child->tail().ends_with(last);
  });
  return was_shown ? text + "\n" : format("{}; its last lines:\n{}\n", text, lines);
}

}  // namespace stepforge
