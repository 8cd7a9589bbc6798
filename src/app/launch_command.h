// `stepforge launch`: starts this program, or another, once for each rank of this host.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepforge {

struct LaunchWords {
  int processes = 0;
  int nodes = 1;
  int node = 0;
  std::string rendezvous;
  double init_seconds = 300;
  int max_restarts = 0;
  std::filesystem::path log_folder = "launch-logs";
  std::string shown = "0";
  std::vector<std::string> command;  ///< "train" and what belongs to it, or a program's path and its words
};

/// Returns the exit code. Throws UsageError for wrong words, Error if the ranks cannot be started.
int launch_command(const LaunchWords& words);

}  // namespace stepforge
