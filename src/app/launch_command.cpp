#include "app/launch_command.h"

#include <iostream>

#include "base/error.h"
#include "base/format.h"
#include "comm/launcher.h"

namespace stepforge {

int launch_command(const LaunchWords& words) {
  if (words.command.empty() || words.command.front() != "train") {
    throw UsageError(
        format("{} where the command is expected: `launch` starts `train`, as in `stepforge launch "
               "--nproc 2 train run.toml`",
               words.command.empty() ? "nothing" : format("\"{}\"", words.command.front())));
  }
  LaunchOptions options;
  options.processes = words.processes;
  options.max_restarts = words.max_restarts;
  options.log_folder = words.log_folder;
  options.shown = parse_rank_list(words.shown, words.processes);
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  options.command.insert(options.command.end(), words.command.begin(), words.command.end());
  return launch(options, std::cerr);
}

}  // namespace stepforge
