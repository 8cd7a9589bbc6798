#include "comm/launcher.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <random>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/format.h"
#include "comm/child_process.h"

namespace stepforge {

namespace {

using Clock = std::chrono::steady_clock;

/// While it lives, SIGINT, SIGTERM and SIGCHLD of this thread are read from a descriptor.
class Signals {
 public:
  Signals() {
    sigset_t watched;
    sigemptyset(&watched);
    for (const int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&watched, number);
    pthread_sigmask(SIG_BLOCK, &watched, &before_);
    descriptor_ = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (descriptor_ < 0) {
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      throw Error(format("signals cannot be watched: {}", std::strerror(errno)));
    }
  }
  ~Signals() {
    close(descriptor_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int descriptor() const { return descriptor_; }
  /// What was blocked before.
  const sigset_t& before() const { return before_; }
  /// The next signal that came; 0 if there is none.
  int next() const {
    signalfd_siginfo info{};
    return read(descriptor_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  int descriptor_ = -1;
  sigset_t before_{};
};

void write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      pollfd writable{descriptor, POLLOUT, 0};
      poll(&writable, 1, -1);
      continue;
    }
    if (count < 0) return;  // nobody reads any more; the logs have it
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

/// Passes output on: as it is from one rank, in whole lines with their rank in front from several.
class Terminal {
 public:
  explicit Terminal(const std::set<int>& shown) : shown_(shown) {}

  void show(int rank, const ChildOutput& output) {
    if (!shown_.contains(rank)) return;
    if (shown_.size() == 1) return write_all(output.target, output.bytes);
    std::string& line = lines_[{rank, output.target}];
    for (const char byte : output.bytes) {
      line += byte;
      if (byte == '\n') flush(rank, output.target, line);
    }
  }
  /// Shows lines that have no end yet.
  void finish() {
    for (auto& [source, line] : lines_) {
      if (!line.empty()) flush(source.first, source.second, line += '\n');
    }
  }

 private:
  static void flush(int rank, int target, std::string& line) {
    write_all(target, format("[rank {}] {}", rank, line));
    line.clear();
  }

  const std::set<int>& shown_;
  std::map<std::pair<int, int>, std::string> lines_;
};

std::vector<std::string> environment_of(int rank, int restart, const LaunchOptions& options,
                                        const std::string& launch_id) {
  const std::map<std::string, std::string> own = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(options.processes)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.processes)},
      {"GROUP_RANK", "0"},
      {"TORCHELASTIC_RUN_ID", launch_id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
      {"STEPFORGE_LAUNCH_ID", launch_id}};
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!own.contains(std::string(text.substr(0, text.find('='))))) variables.emplace_back(text);
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
  int rank = -1;  ///< the first that failed
  bool interrupted = false;
};

/// All ranks once, from start to end.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, int restart, const std::string& launch_id, const Signals& signals)
      : options_(options), restart_(restart), signals_(signals), terminal_(options.shown) {
    for (int rank = 0; rank < options.processes; ++rank) {
      ranks_.push_back(std::make_unique<ChildProcess>(
          ChildProcess::Start{options.command, environment_of(rank, restart, options, launch_id),
                              log_path(options, rank, restart), signals.before()}));
    }
  }

  Outcome run() {
    while (is_any_running()) {
      wait_for_news();
      while (const int number = signals_.next()) {
        if (number != SIGCHLD) pass_on(number);
      }
      pass_output();
      reap();
      end_late_ranks();
    }
    terminal_.finish();
    return outcome_;
  }

  /// The failed rank's end in words, with its last lines.
  std::string report() const {
    const auto& child = *ranks_[static_cast<std::size_t>(outcome_.rank)];
    const std::string how = outcome_.exit_code > 128
                                ? format("was ended by signal {} ({})", outcome_.exit_code - 128,
                                         sigdescr_np(outcome_.exit_code - 128))
                                : format("failed with exit code {}", outcome_.exit_code);
    return format("rank {} of {} {}; its log is {}, its last lines:\n{}\n", outcome_.rank, options_.processes,
                  how, log_path(options_, outcome_.rank, restart_).string(), child.tail());
  }

 private:
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
    // After a failure the time of the next signal may come without any news.
    poll(polled_.data(), polled_.size(), next_signal_ != 0 ? 50 : -1);
  }

  void pass_output() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) show_output(static_cast<int>(rank));
  }
  /// False if there was nothing.
  bool show_output(int rank) {
    const std::vector<ChildOutput> outputs = ranks_[static_cast<std::size_t>(rank)]->read_output();
    for (const ChildOutput& output : outputs) terminal_.show(rank, output);
    return !outputs.empty();
  }
  /// What a rank wrote between the last look and its end: no more than a few reads, since a process that it
  /// left behind may go on writing.
  void show_rest(int rank) {
    for (int i = 0; i < 8 && show_output(rank); ++i) {
    }
  }

  void pass_on(int number) {
    outcome_.interrupted = true;
    for (const auto& child : ranks_) child->signal(number);
  }

  void reap() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (!ranks_[i]->reap()) continue;
      const int rank = static_cast<int>(i);
      show_rest(rank);
      const int code = *ranks_[i]->exit_code();
      if (code == 0 || outcome_.rank >= 0) continue;
      outcome_.rank = rank;
      outcome_.exit_code = code;
      if (outcome_.interrupted) continue;  // all have their signal and end in order
      end_next_with(SIGTERM, options_.notice_seconds);
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
    if (next_signal_ == SIGTERM) end_next_with(SIGKILL, options_.grace_seconds);
  }

  const LaunchOptions& options_;
  int restart_;
  const Signals& signals_;
  Terminal terminal_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  std::vector<pollfd> polled_;
  int next_signal_ = 0;  ///< for the ranks that are left after a failure
  Clock::time_point signal_at_;
  Outcome outcome_;
};

/// A number for one side of "4-7"; -1 if it is none.
int rank_number(std::string_view text) {
  int value = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

std::set<int> parse_rank_list(const std::string& text, int processes) {
  std::set<int> ranks;
  if (text == "all") {
    for (int rank = 0; rank < processes; ++rank) ranks.insert(rank);
    return ranks;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = std::string_view(text).substr(begin, end - begin);
    const std::size_t dash = entry.find('-');
    const int first = rank_number(entry.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : rank_number(entry.substr(dash + 1));
    if (first < 0 || last < first || last >= processes) {
      throw UsageError(
          format("\"{}\" is no list of ranks below {}: expected for example \"0\", \"0,2,4-7\" or "
                 "\"all\"",
                 text, processes));
    }
    for (int rank = first; rank <= last; ++rank) ranks.insert(rank);
    begin = end + 1;
  }
  return ranks;
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
  std::random_device device;
  const std::string launch_id = format("{}-{:08x}", getpid(), device());
  const Signals signals;
  for (int restart = 0;; ++restart) {
    Attempt attempt(options, restart, launch_id, signals);
    const Outcome outcome = attempt.run();
    if (outcome.exit_code == 0) return 0;
    if (outcome.interrupted) return outcome.exit_code;
    report << attempt.report() << std::flush;
    if (restart >= options.max_restarts || outcome.exit_code == static_cast<int>(ExitCode::usage)) {
      return outcome.exit_code;
    }
    report << format("starting all ranks again: restart {} of {}\n", restart + 1, options.max_restarts)
           << std::flush;
  }
}

}  // namespace stepforge
