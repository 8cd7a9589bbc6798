// Starts the ranks of one host as processes, watches them, and ends all when one fails.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <set>
#include <string>
#include <vector>

namespace stepforge {

struct LaunchOptions {
  int processes = 1;
  /// How often all ranks are started again after a failure. Wrong use (exit code 2) and an interruption end
  /// at once.
  int max_restarts = 0;
  /// Gets rank-<r>.log of each rank, later attempts' rank-<r>.restart-<n>.log; files of the same name are
  /// replaced.
  std::filesystem::path log_folder = "launch-logs";
  /// Ranks whose output is passed on; with a prefix if they are more than one.
  std::set<int> shown = {0};
  /// Program and words of every rank; the program is not searched for.
  std::vector<std::string> command;
  /// Seconds after a failure in which the other ranks can notice it and end by themselves; then they get
  /// SIGTERM.
  double notice_seconds = 1;
  /// Seconds after SIGTERM until those that are left get SIGKILL.
  double grace_seconds = 5;
};

/// "0,2,4-7" or "all". Throws UsageError if it is no such list, or names a rank that is not among
/// `processes`.
std::set<int> parse_rank_list(const std::string& text, int processes);

/// Runs the ranks to their end. What they write goes to their logs and, if shown, to this process's standard
/// output and error; reports of failures go to `report`. SIGINT and SIGTERM are passed on, once for each that
/// comes.
///
/// Each rank gets torchrun's variables RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK,
/// TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS, and STEPFORGE_LAUNCH_ID.
/// Returns 0 if all ranks succeed, else the exit code of the first that failed (128 + the signal that ended
/// it). Throws UsageError for wrong options, Error if a rank or its log cannot be started.
int launch(const LaunchOptions& options, std::ostream& report);

}  // namespace stepforge
