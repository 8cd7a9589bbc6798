#include "stepforge/app/launch_command.h"

#include <filesystem>
#include <iostream>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Program and words of every rank: this program if it shall train, or one of the user's, named by its path.
std::vector<std::string> rank_command(const std::vector<std::string>& words) {
  const std::string first = words.empty() ? "" : words.front();
  if (first.find('/') != std::string::npos) return words;
  if (first != "train") {
    throw UsageError(format(
        "{} where the command is expected: `launch` starts `train`, as in `stepforge launch --nproc 2 "
        "train run.toml`, or a program of yours by its path, as in `stepforge launch --nproc 2 ./loop`",
        words.empty() ? "nothing" : format("\"{}\"", first)));
  }
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

}  // namespace

int launch_command(LaunchOptions options) {
  options.command = rank_command(options.command);
  return launch(options, std::cerr);
}

}  // namespace stepforge
