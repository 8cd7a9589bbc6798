#include "stepforge/launch/launcher.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/launch/child_process.h"
#include "stepforge/launch/launch_io.h"
#include "stepforge/launch/nodes.h"
#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

namespace {

using Clock = std::chrono::steady_clock;

/// One attempt to run all ranks of the job.
struct Plan {
  const LaunchOptions& options;
  NodeStart start;
  int restart = 0;
  int store_listener = -1;  ///< for rank 0
};

std::vector<std::string> environment_of(int local_rank, const Plan& plan) {
  const NodeStart& start = plan.start;
  const int rank = start.first_rank + local_rank;
  std::map<std::string, std::string> own = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", std::to_string(start.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(plan.options.processes)},
      {"GROUP_RANK", std::to_string(plan.options.node)},
      {"GROUP_WORLD_SIZE", std::to_string(plan.options.nodes)},
      {"MASTER_ADDR", start.master_address},
      {"MASTER_PORT", std::to_string(start.master_port)},
      {"TORCHELASTIC_RUN_ID", start.launch_id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(plan.restart)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(plan.options.max_restarts)},
      {"STEPFORGE_LAUNCH_ID", start.launch_id}};
  if (rank == 0) own["STEPFORGE_STORE_LISTENER"] = std::to_string(plan.store_listener);
  // What another launcher around this one has set for itself.
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

/// Opens the socket on which rank 0 will hold the ranks' store: nobody can take the port in between.
Descriptor listen_for_store(const LaunchOptions& options) {
  if (options.nodes == 1) return listen_at({"127.0.0.1", 0});
  const char* wanted = std::getenv("MASTER_PORT");
  const std::string host = parse_tcp_address(options.rendezvous, "--rendezvous").host;
  return listen_at(wanted == nullptr
                       ? TcpAddress{host, 0}
                       : parse_tcp_address(format("[{}]:{}", host, wanted), "MASTER_ADDR:MASTER_PORT"));
}

std::filesystem::path log_path(const LaunchOptions& options, int rank, int restart) {
  const std::string suffix = restart == 0 ? "" : format(".restart-{}", restart);
  return options.log_folder / format("rank-{}{}.log", rank, suffix);
}

/// What ended one attempt.
struct Outcome {
  int exit_code = 0;
  bool interrupted = false;
  bool can_repeat = true;
  std::string report;  ///< of a failure
};

/// All ranks of this node once, from start to end.
class Attempt {
 public:
  Attempt(const Plan& plan, Nodes& nodes, const Signals& signals, const std::set<int>& shown)
      : plan_(plan), nodes_(nodes), signals_(signals), terminal_(shown) {
    for (int local = 0; local < plan.options.processes; ++local) {
      const int rank = plan.start.first_rank + local;
      ranks_.push_back(std::make_unique<ChildProcess>(ChildProcess::Start{
          plan.options.command, environment_of(local, plan), log_path(plan.options, rank, plan.restart),
          signals.before(), rank == 0 ? plan.store_listener : -1}));
    }
  }

  Outcome run() {
    while (is_any_running()) {
      wait_for_news();
      take_signals();
      hear_nodes();
      pass_output();
      reap();
      end_late_ranks();
    }
    terminal_.finish();
    const std::optional<NodeFailure> failure = nodes_.finish([this] { take_signals(); });
    Outcome outcome;
    outcome.interrupted = interrupted_;
    if (failure) {
      outcome.exit_code = failure->exit_code;
      outcome.can_repeat = !failure->node_is_lost && failure->exit_code != static_cast<int>(ExitCode::usage);
      outcome.report = failure->text + "\n";
    }
    return outcome;
  }

 private:
  /// A rank's end in words, with its last lines.
  std::string failure_text(int local_rank, int code) const {
    const int rank = plan_.start.first_rank + local_rank;
    const std::string how = code > 128
                                ? format("was ended by signal {} ({})", code - 128, sigdescr_np(code - 128))
                                : format("failed with exit code {}", code);
    const std::string where = plan_.options.nodes > 1 ? format(" on node {}", plan_.options.node) : "";
    return format("rank {} of {} {}{}; its log is {}, its last lines:\n{}", rank, plan_.start.world_size, how,
                  where, log_path(plan_.options, rank, plan_.restart).string(),
                  ranks_[static_cast<std::size_t>(local_rank)]->tail());
  }

  bool is_any_running() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& child) { return child->is_running(); });
  }

  void wait_for_news() {
    polled_.assign(1, {signals_.descriptor(), POLLIN, 0});
    for (const auto& child : ranks_) {
      for (const int pipe : child->pipes()) {
        if (pipe >= 0) polled_.push_back({pipe, POLLIN, 0});
      }
    }
    nodes_.add_polled(polled_);
    // After a failure the time of the next signal may come without any news; and another node may fall
    // silent.
    const int idle = plan_.options.nodes > 1 ? 500 : -1;
    poll(polled_.data(), polled_.size(), next_signal_ != 0 ? 50 : idle);
  }

  void pass_output() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) show_output(static_cast<int>(rank));
  }
  /// False if there was nothing.
  bool show_output(int rank) {
    const std::vector<ChildOutput> outputs = ranks_[static_cast<std::size_t>(rank)]->read_output();
    for (const ChildOutput& output : outputs) terminal_.show(plan_.start.first_rank + rank, output);
    return !outputs.empty();
  }
  /// What a rank wrote between the last look and its end: no more than a few reads, since a process that it
  /// left behind may go on writing.
  void show_rest(int rank) {
    for (int i = 0; i < 8 && show_output(rank); ++i) {
    }
  }

  void hear_nodes() {
    const NodeNews news = nodes_.news();
    if (news.signal != 0) pass_on(news.signal, news.signal_count);
    if (news.has_failed) fail();
  }

  void take_signals() {
    while (const int number = signals_.next()) {
      if (number == SIGCHLD) continue;
      nodes_.tell_signal(number, ++received_);
      pass_on(number, received_);
    }
  }

  /// Ranks get one signal for the first that any launcher has received, one for the second, and so on:
  /// whoever sends it may send it to one launcher or to all.
  void pass_on(int number, int count) {
    if (count <= passed_on_) return;
    passed_on_ = count;
    interrupted_ = true;
    for (const auto& child : ranks_) child->signal(number);
  }

  void reap() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (!ranks_[i]->reap()) continue;
      const int local_rank = static_cast<int>(i);
      show_rest(local_rank);
      const int code = *ranks_[i]->exit_code();
      if (code == 0) continue;
      if (!has_failed_) {
        nodes_.tell_failure({code, failure_text(local_rank, code), false});
      }
      fail();
    }
  }

  /// A rank has failed, here or elsewhere: the others end.
  void fail() {
    if (std::exchange(has_failed_, true)) return;
    if (interrupted_) return;  // all have their signal and end in order
    end_next_with(SIGTERM, plan_.options.notice_seconds);
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
  Nodes& nodes_;
  const Signals& signals_;
  Terminal terminal_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  std::vector<pollfd> polled_;
  bool has_failed_ = false;
  bool interrupted_ = false;
  int received_ = 0;     ///< signals, by this launcher
  int passed_on_ = 0;    ///< signals, to the ranks
  int next_signal_ = 0;  ///< for the ranks that are left after a failure
  Clock::time_point signal_at_;
};

/// A number for one side of "4-7"; -1 if it is none.
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
          format("\"{}\" is no list of ranks below {}: expected for example \"0\", \"0,2,4-7\" or "
                 "\"all\"",
                 text, ranks));
    }
    for (int rank = first; rank <= last; ++rank) result.insert(rank);
    begin = end + 1;
  }
  return result;
}

int launch(const LaunchOptions& options, std::ostream& report) {
  if (options.processes < 1) throw UsageError(format("{} ranks: at least one is started", options.processes));
  if (options.max_restarts < 0) throw UsageError(format("{} restarts: 0 or more", options.max_restarts));
  if (options.command.empty()) throw UsageError("no command for the ranks to run");
  std::error_code failure;
  std::filesystem::create_directories(options.log_folder, failure);
  if (failure) {
    throw Error(
        format("cannot make the folder of logs {}: {}", options.log_folder.string(), failure.message()));
  }
  const Signals signals;
  const std::unique_ptr<Nodes> nodes =
      meet_nodes({options.nodes, options.node, options.processes, options.max_restarts, options.rendezvous,
                  options.init_seconds},
                 report);
  bool is_interrupted = false;
  const auto stop = [&] {
    while (const int number = signals.next()) is_interrupted = is_interrupted || number != SIGCHLD;
    return is_interrupted;
  };
  for (int restart = 0;; ++restart) {
    const Descriptor store_listener = options.node == 0 ? listen_for_store(options) : Descriptor();
    const int port = store_listener ? port_of(store_listener) : 0;
    const std::optional<NodeStart> start = nodes->begin(restart, port, stop);
    if (!start) return static_cast<int>(ExitCode::interrupted);
    const std::set<int> shown =
        options.shown.empty() ? std::set<int>() : parse_rank_list(options.shown, start->world_size);
    const Plan plan{options, *start, restart, store_listener.number()};
    const Outcome outcome = Attempt(plan, *nodes, signals, shown).run();
    if (outcome.exit_code == 0 || outcome.interrupted) return outcome.exit_code;
    report << outcome.report << std::flush;
    if (restart >= options.max_restarts || !outcome.can_repeat) return outcome.exit_code;
    report << format("starting all ranks again: restart {} of {}\n", restart + 1, options.max_restarts)
           << std::flush;
  }
}

}  // namespace stepforge
