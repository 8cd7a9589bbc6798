// SPDX-License-Identifier: Apache-2.0
// `stepforge launch`: starts the ranks of one host as processes, watches them, and ends all when one fails.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <set>
#include <string>
#include <vector>

namespace stepforge {

struct LaunchOptions {
  int processes = 1;  ///< on this host
  /// Static rendezvous of several hosts: each runs a launcher with the same number of processes, which knows
  /// nothing of the other launchers. It only numbers its ranks from node * processes and sets MASTER_ADDR and
  /// MASTER_PORT to `rendezvous` ("HOST:PORT"), where rank 0 listens.
  int nodes = 1;
  int node = 0;
  std::string rendezvous;
  /// How often all ranks are restarted after a failure; on one host only. A usage error (exit code 2) and an
  /// interrupt end the job at once.
  int max_restarts = 0;
  /// Gets rank-<r>.log of each rank, later attempts' rank-<r>.restart-<n>.log; files of the same name are
  /// replaced.
  std::filesystem::path log_folder = "launch-logs";
  /// "0,2,4-7" or "all": ranks of the job whose output is shown, with a prefix if they are more than one. Each
  /// launcher shows those of its own host.
  std::string shown = "0";
  /// Program and arguments of every rank; the program is not searched for in PATH.
  std::vector<std::string> command;
  /// Seconds after a failure until the other ranks, which mostly notice it and end, get SIGTERM.
  double notice_seconds = 1;
  /// Seconds after an interrupt in which ranks may finish their step and save; then they get SIGTERM.
  double interrupt_seconds = 600;
  /// Seconds after the first rank has ended by an interrupt until those that are left get SIGTERM.
  double straggler_seconds = 30;
  /// Seconds after this SIGTERM until those that are left get SIGKILL.
  double grace_seconds = 5;
};

/// "0,2,4-7" or "all". Throws UsageError if the text is not such a list or names a rank outside 0 to
/// `ranks` - 1.
std::set<int> parse_rank_list(const std::string& text, int ranks);

/// Runs the ranks to their end. Their output goes to their logs and, if shown, to this process's standard
/// output and error; reports of failures go to `report`. Each SIGINT and SIGTERM is passed on to the ranks, with
/// the number of signals so far as its value (sigqueue).
///
/// Each rank gets torchrun's variables RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK,
/// GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT and
/// TORCHELASTIC_MAX_RESTARTS, and STEPFORGE_LAUNCH_ID. On one host MASTER_PORT is a free port, and rank 0 also
/// gets STEPFORGE_STORE_LISTENER, an open socket that listens on it. OMP_NUM_THREADS, unless it is set, becomes
/// the usable cores divided by the ranks. If the output of one rank is shown on a terminal, that rank gets
/// STEPFORGE_STDERR_COLUMNS (base/log.h).
///
/// Returns 0 if all ranks succeed, else the exit code of the first that failed (128 + the signal that ended
/// it); a usage error of any rank comes first. Throws UsageError for wrong options or a program that cannot be
/// run, Error if a rank or its log cannot be started.
int launch(const LaunchOptions& options, std::ostream& report);

}  // namespace stepforge
