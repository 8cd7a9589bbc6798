#include "stepforge/launch/launcher.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <random>

#include <poll.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/launch/child_process.h"
#include "stepforge/launch/launch_io.h"
#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int most_ranks = 1 << 24;

/// One attempt to run all ranks.
struct Plan {
  const LaunchOptions& options;
  std::string launch_id;
  TcpAddress rendezvous;    ///< where rank 0's store is
  int store_listener = -1;  ///< for rank 0
  int restart = 0;

  int rank_of(int local_rank) const { return options.node * options.processes + local_rank; }
  int world_size() const { return options.nodes * options.processes; }
};

std::vector<std::string> environment_of(int local_rank, const Plan& plan) {
  const int rank = plan.rank_of(local_rank);
  std::map<std::string, std::string> own = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", std::to_string(plan.world_size())},
      {"LOCAL_WORLD_SIZE", std::to_string(plan.options.processes)},
      {"GROUP_RANK", std::to_string(plan.options.node)},
      {"GROUP_WORLD_SIZE", std::to_string(plan.options.nodes)},
      {"MASTER_ADDR", plan.rendezvous.host},
      {"MASTER_PORT", std::to_string(plan.rendezvous.port)},
      {"TORCHELASTIC_RUN_ID", plan.launch_id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(plan.restart)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(plan.options.max_restarts)},
      {"STEPFORGE_LAUNCH_ID", plan.launch_id}};
  if (rank == 0 && plan.store_listener >= 0) {
    own["STEPFORGE_STORE_LISTENER"] = std::to_string(plan.store_listener);
  }
  // Variables that a launcher around this one has set for itself.
  const std::set<std::string> foreign = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
                                         "STEPFORGE_STORE_LISTENER"};
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string name(text.substr(0, text.find('=')));
    if (!own.contains(name) && !foreign.contains(name)) variables.emplace_back(text);
  }
  for (const auto& [name, value] : own) variables.push_back(format("{}={}", name, value));
  return variables;
}

std::filesystem::path log_path(const LaunchOptions& options, int rank, int restart) {
  const std::string suffix = restart == 0 ? "" : format(".restart-{}", restart);
  return options.log_folder / format("rank-{}{}.log", rank, suffix);
}

/// What ended one attempt.
struct Outcome {
  int exit_code = 0;
  bool interrupted = false;
  std::string report;  ///< of a failure
};

/// All ranks of this host once, from start to end.
class Attempt {
 public:
  Attempt(const Plan& plan, const Signals& signals, const std::set<int>& shown)
      : plan_(plan), signals_(signals), terminal_(shown) {
    for (int local = 0; local < plan.options.processes; ++local) {
      const int rank = plan.rank_of(local);
      ranks_.push_back(std::make_unique<ChildProcess>(ChildProcess::Start{
          plan.options.command, environment_of(local, plan), log_path(plan.options, rank, plan.restart),
          signals.before(), rank == 0 ? plan.store_listener : -1}));
    }
  }

  Outcome run() {
    while (is_any_running()) {
      wait_for_events();
      take_signals();
      pass_output();
      reap();
      end_late_ranks();
    }
    terminal_.finish();
    return outcome_;
  }

 private:
  /// A rank's end in words, with its last lines.
  std::string failure_text(int local_rank, int code) const {
    const int rank = plan_.rank_of(local_rank);
    const std::string how = code > 128
                                ? format("was ended by signal {} ({})", code - 128, sigdescr_np(code - 128))
                                : format("failed with exit code {}", code);
    return format("rank {} of {} {}; its log is {}, its last lines:\n{}\n", rank, plan_.world_size(), how,
                  log_path(plan_.options, rank, plan_.restart).string(),
                  ranks_[static_cast<std::size_t>(local_rank)]->tail());
  }

  bool is_any_running() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& child) { return child->is_running(); });
  }

  void wait_for_events() {
    polled_.assign(1, {signals_.descriptor(), POLLIN, 0});
    for (const auto& child : ranks_) {
      for (const int pipe : child->pipes()) {
        if (pipe >= 0) polled_.push_back({pipe, POLLIN, 0});
      }
    }
    // After a failure the time of the next signal may come without any event.
    poll(polled_.data(), polled_.size(), next_signal_ != 0 ? 50 : -1);
  }

  void pass_output() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) show_output(static_cast<int>(rank));
  }
  /// False if there was nothing.
  bool show_output(int rank) {
    const std::vector<ChildOutput> outputs = ranks_[static_cast<std::size_t>(rank)]->read_output();
    for (const ChildOutput& output : outputs) terminal_.show(plan_.rank_of(rank), output);
    return !outputs.empty();
  }
  /// What a rank wrote between the last look and its end: no more than a few reads, since a process that it
  /// left behind may go on writing.
  void show_rest(int rank) {
    for (int i = 0; i < 8 && show_output(rank); ++i) {
    }
  }

  void take_signals() {
    while (const int number = signals_.next()) {
      if (number == SIGCHLD) continue;
      outcome_.interrupted = true;
      for (const auto& child : ranks_) child->signal(number);
    }
  }

  void reap() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (!ranks_[i]->reap()) continue;
      const int local_rank = static_cast<int>(i);
      show_rest(local_rank);
      const int code = *ranks_[i]->exit_code();
      if (code == 0 || outcome_.exit_code != 0) continue;
      outcome_.exit_code = code;
      outcome_.report = failure_text(local_rank, code);
      if (outcome_.interrupted) continue;  // all have their signal and end in order
      end_next_with(SIGTERM, plan_.options.notice_seconds);
    }
  }

  void end_next_with(int number, double seconds) {
    next_signal_ = number;
    signal_at_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  /// The ranks that are left after a failure get SIGTERM, then SIGKILL.
  void end_late_ranks() {
    if (next_signal_ == 0 || Clock::now() < signal_at_) return;
    for (const auto& child : ranks_) child->signal(next_signal_);
    if (next_signal_ == SIGTERM) end_next_with(SIGKILL, plan_.options.grace_seconds);
  }

  const Plan& plan_;
  const Signals& signals_;
  Terminal terminal_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  std::vector<pollfd> polled_;
  Outcome outcome_;
  int next_signal_ = 0;  ///< for the ranks that are left after a failure
  Clock::time_point signal_at_;
};

std::string new_launch_id() {
  std::random_device device;
  return format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

void check(const LaunchOptions& options) {
  if (options.processes < 1) throw UsageError(format("--nproc {} must be at least 1", options.processes));
  if (options.nodes < 1 || int64_t{options.nodes} * options.processes > most_ranks) {
    throw UsageError(format("--nnodes {} must be at least 1, and with --nproc {} at most {} ranks",
                            options.nodes, options.processes, most_ranks));
  }
  if (options.node < 0 || options.node >= options.nodes) {
    throw UsageError(format("--node-rank {} must be between 0 and {}", options.node, options.nodes - 1));
  }
  if (options.nodes > 1 && options.rendezvous.empty()) {
    throw UsageError("--nnodes needs --rendezvous HOST:PORT, the same on all hosts: where rank 0 listens");
  }
  if (options.max_restarts < 0) {
    throw UsageError(format("--max-restarts {} must be at least 0", options.max_restarts));
  }
  if (options.nodes > 1 && options.max_restarts > 0) {
    throw UsageError(
        "--max-restarts works on one host only: launchers of several hosts do not know of each other. "
        "Restart the whole job with torchrun, Slurm or Kubernetes");
  }
  if (options.command.empty()) throw UsageError("the command that the ranks run is missing");
}

/// A number for one side of "4-7"; -1 if it is not a number.
int rank_number(std::string_view text) {
  int value = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

std::set<int> parse_rank_list(const std::string& text, int ranks) {
  std::set<int> result;
  if (text == "all") {
    for (int rank = 0; rank < ranks; ++rank) result.insert(rank);
    return result;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = std::string_view(text).substr(begin, end - begin);
    const std::size_t dash = entry.find('-');
    const int first = rank_number(entry.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : rank_number(entry.substr(dash + 1));
    if (first < 0 || last < first || last >= ranks) {
      throw UsageError(
          format("--ranks \"{}\" is not a list of ranks between 0 and {}, such as \"0\", \"0,2,4-7\" or "
                 "\"all\"",
                 text, ranks - 1));
    }
    for (int rank = first; rank <= last; ++rank) result.insert(rank);
    begin = end + 1;
  }
  return result;
}

int launch(const LaunchOptions& options, std::ostream& report) {
  check(options);
  Plan plan{options, new_launch_id(), {}};
  if (options.nodes > 1) {
    plan.rendezvous = parse_tcp_address(options.rendezvous, "--rendezvous");
    plan.launch_id = plan.rendezvous.text();  // all launchers must name the job alike
  }
  const std::set<int> shown =
      options.shown.empty() ? std::set<int>() : parse_rank_list(options.shown, plan.world_size());
  std::error_code failure;
  std::filesystem::create_directories(options.log_folder, failure);
  if (failure) {
    throw Error(
        format("the log folder {} cannot be made: {}", options.log_folder.string(), failure.message()));
  }
  const Signals signals;
  for (;; ++plan.restart) {
    Descriptor listener;
    if (options.nodes == 1) {
      // Opened here and handed to rank 0, so that no other program can take the port in between.
      listener = listen_on_loopback();
      plan.rendezvous = {"127.0.0.1", port_of(listener)};
      plan.store_listener = listener.number();
    }
    const Outcome outcome = Attempt(plan, signals, shown).run();
    if (outcome.exit_code == 0 || outcome.interrupted) return outcome.exit_code;
    report << outcome.report << std::flush;
    const bool can_heal = outcome.exit_code != static_cast<int>(ExitCode::usage);
    if (plan.restart >= options.max_restarts || !can_heal) return outcome.exit_code;
    report << format("restarting all ranks: restart {} of {}\n", plan.restart + 1, options.max_restarts)
           << std::flush;
  }
}

}  // namespace stepforge
