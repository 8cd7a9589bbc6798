// Starts the ranks of a host as processes, watches them, and ends all when one fails, here or on another
// host.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <set>
#include <string>
#include <vector>

namespace stepforge {

struct LaunchOptions {
  int processes = 1;  ///< on this host
  /// Hosts, and this one's number: each runs a launcher, which meet at `rendezvous` ("HOST:PORT", where node
  /// 0's listens). Their ranks are numbered node by node.
  int nodes = 1;
  int node = 0;
  std::string rendezvous;
  /// How long the launchers wait for each other at the start.
  double init_seconds = 300;
  /// How often all ranks are started again after a failure. Wrong use (exit code 2) and an interruption end
  /// at once.
  int max_restarts = 0;
  /// Gets rank-<r>.log of each rank, later attempts' rank-<r>.restart-<n>.log; files of the same name are
  /// replaced.
  std::filesystem::path log_folder = "launch-logs";
  /// "0,2,4-7" or "all": ranks whose output is passed on, with a prefix if they are more than one. Those of
  /// other hosts are shown there.
  std::string shown = "0";
  /// Program and words of every rank; the program is not searched for.
  std::vector<std::string> command;
  /// Seconds after a failure in which the other ranks can notice it and end by themselves; then they get
  /// SIGTERM.
  double notice_seconds = 1;
  /// Seconds after SIGTERM until those that are left get SIGKILL.
  double grace_seconds = 5;
};

/// "0,2,4-7" or "all". Throws UsageError if it is no such list, or names a rank that is not among
/// `ranks`.
std::set<int> parse_rank_list(const std::string& text, int ranks);

/// Runs the ranks to their end. What they write goes to their logs and, if shown, to this process's standard
/// output and error; reports of failures go to `report`. SIGINT and SIGTERM are passed on, once for each that
/// comes; of several nodes, to the ranks of all.
///
/// Each rank gets torchrun's variables RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK,
/// GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT and
/// TORCHELASTIC_MAX_RESTARTS, and STEPFORGE_LAUNCH_ID; rank 0 also STEPFORGE_STORE_LISTENER, an open socket
/// that listens on MASTER_PORT. That port is a free one, or, with several nodes, the one MASTER_PORT names
/// for node 0's process.
///
/// Returns 0 if all ranks succeed, else the exit code of the first of all nodes that failed (128 + the signal
/// that ended it). Throws UsageError for wrong options or a port in use, PeerError if other nodes' launchers
/// do not come, Error if a rank or its log cannot be started.
int launch(const LaunchOptions& options, std::ostream& report);

}  // namespace stepforge
