// SPDX-License-Identifier: Apache-2.0
// `stepforge launch`: starts the ranks of one host as processes, and ends all of them if one fails.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <set>
#include <string>
#include <vector>

namespace stepforge {

struct LaunchOptions {
  int processes = 1;  ///< on this host
  /// Static rendezvous of several hosts: each host runs a launcher with the same number of processes. The
  /// launchers do not communicate; each numbers its ranks from node * processes, sets MASTER_ADDR and
  /// MASTER_PORT to `rendezvous` ("HOST:PORT"), where rank 0 listens, and asks there whether the job still runs.
  int nodes = 1;
  int node = 0;
  std::string rendezvous;
  /// How often all ranks are restarted after a failure (one host only). After a usage error (exit code 2) or
  /// an interrupt they are not restarted.
  int max_restarts = 0;
  /// Folder for rank-<r>.log of each rank, and rank-<r>.restart-<n>.log of restarts. Existing files are
  /// replaced.
  std::filesystem::path log_folder = "launch-logs";
  /// The run folder that the logs lie in, if they do: no link below it is followed.
  std::filesystem::path run_folder;
  /// "0,2,4-7" or "all": ranks of the job whose output is shown, with a prefix if there are several. Each
  /// launcher shows those of its own host. "": none.
  std::string shown = "0";
  /// Program (a path, not searched for in PATH) and arguments of every rank.
  std::vector<std::string> command;
  /// Seconds from a failure until the other ranks get SIGTERM. Usually they notice the failure and end
  /// before.
  double notice_seconds = 1;
  /// Seconds from an interrupt until ranks get SIGTERM. Before, they may finish their step and save.
  double interrupt_seconds = 600;
  /// Seconds from the end of the first interrupted rank until the others get SIGTERM.
  double straggler_seconds = 30;
  /// Seconds from SIGTERM until the remaining ranks get SIGKILL.
  double grace_seconds = 5;
  /// With several hosts: seconds between two queries of rank 0's store.
  double ask_seconds = 2;
  /// With several hosts: seconds without an answer of rank 0's store after which the job has ended (store_watch.h).
  double silent_seconds = 60;
  /// With several hosts: seconds from the end of the job elsewhere until ranks that still run get SIGTERM. They notice
  /// that end at once and can save nothing without the others.
  double ended_seconds = 60;
};

/// "0,2,4-7" or "all". Throws UsageError if the text is not such a list or names a rank outside 0 to
/// `ranks` - 1.
std::set<int> parse_rank_list(const std::string& text, int ranks);

/// Runs the ranks until all have ended. Their output goes to their logs and, if shown, to this process's
/// standard output and error; failures are described in `report`. Each of
/// end_signals() (base/interrupt.h) is forwarded to the ranks, with the number of SIGINT and SIGTERM so far as its value (sigqueue).
///
/// Each rank gets torchrun's variables RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK,
/// GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT and
/// TORCHELASTIC_MAX_RESTARTS, and STEPFORGE_LAUNCH_ID. On one host MASTER_PORT is a free port, and rank 0
/// also gets STEPFORGE_STORE_LISTENER, an open socket that listens on it. OMP_NUM_THREADS, unless it is set,
/// becomes the usable cores divided by the ranks. If the output of one rank is shown on a terminal, that rank
/// gets STEPFORGE_STDERR_COLUMNS (base/log.h).
///
/// Returns 0 if all ranks succeed, else the exit code of the first that failed (128 + signal number if a
/// signal killed it); a usage error of any rank takes precedence. Throws UsageError for invalid options or a
/// program that cannot be run, Error if a rank or its log cannot be created.
int launch(const LaunchOptions& options, std::ostream& report);

}  // namespace stepforge
