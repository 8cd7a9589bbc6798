// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/launcher.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ostream>
#include <random>

#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/format.h"
#include "stepforge/launch/attempt.h"
#include "stepforge/launch/host_limits.h"
#include "stepforge/launch/launch_io.h"
#include "stepforge/launch/rank_environment.h"
#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

namespace {

std::string new_launch_id() {
  std::random_device device;
  return format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

void check(const LaunchOptions& options) {
  if (options.processes < 1) throw UsageError(format("--nproc {} must be at least 1", options.processes));
  if (options.nodes < 1 || int64_t{options.nodes} * options.processes > kMaxRanks) {
    throw UsageError(format("--nnodes {} must be at least 1, and with --nproc {} at most {} ranks",
                            options.nodes, options.processes, kMaxRanks));
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
  check_ranks_of_host(options.processes, read_host_limits());
  if (options.command.empty()) throw UsageError("no command for the ranks is given");
  const std::string& program = options.command.front();
  if (access(program.c_str(), X_OK) != 0) {
    throw UsageError(format("{} cannot be run: {}", program, std::strerror(errno)));
  }
}

/// One bound of a range such as "4-7"; -1 if it is not a number.
int parse_rank(std::string_view text) {
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
    const int first = parse_rank(entry.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : parse_rank(entry.substr(dash + 1));
    if (first < 0 || last < first || last >= ranks) {
      throw UsageError(
          format("--ranks \"{}\" is not a list of ranks between 0 and {}, such as \"0\", "
                 "\"0,2,4-7\" or \"all\"",
                 text, ranks - 1));
    }
    for (int rank = first; rank <= last; ++rank) result.insert(rank);
    begin = end + 1;
  }
  return result;
}

int launch(const LaunchOptions& options, std::ostream& report) {
  check(options);
  AttemptOptions attempt{options, new_launch_id(), {}};
  if (options.nodes > 1) {
    attempt.rendezvous = parse_tcp_address(options.rendezvous, "--rendezvous");
    attempt.launch_id = attempt.rendezvous.text();  // the same on all hosts
  }
  const std::set<int> shown =
      options.shown.empty() ? std::set<int>() : parse_rank_list(options.shown, attempt.world_size());
  if (options.run_folder.empty()) {
    create_folder_inside(options.log_folder, {});
  } else {
    create_folder_inside(options.run_folder, options.log_folder.lexically_relative(options.run_folder));
  }
  const Signals signals;
  for (;; ++attempt.restart) {
    Descriptor listener;
    if (options.nodes == 1) {
      // Opened here and inherited by rank 0, so that no other program can take the port in between.
      listener = listen_on_loopback();
      attempt.rendezvous = {"127.0.0.1", port_of(listener)};
      attempt.store_listener = listener.number();
    }
    const AttemptOutcome outcome = Attempt(attempt, signals, shown).run();
    report << outcome.notice << std::flush;
    if (outcome.exit_code == 0 || outcome.interrupted) return outcome.exit_code;
    report << outcome.report << std::flush;
    const bool can_succeed = outcome.exit_code != static_cast<int>(ExitCode::usage);
    if (attempt.restart >= options.max_restarts || !can_succeed) return outcome.exit_code;
    report << format("restarting all ranks: restart {} of {}\n", attempt.restart + 1, options.max_restarts)
           << std::flush;
  }
}

}  // namespace stepforge
