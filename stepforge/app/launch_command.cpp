// SPDX-License-Identifier: Apache-2.0
// `stepforge launch`: starts this program, or another, once for each rank of this host.
#include <filesystem>
#include <iostream>

#include "stepforge/app/commands.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Program and arguments of every rank: this program for `train`, or the user's program, given by its path.
std::vector<std::string> rank_command(const std::vector<std::string>& arguments,
                                      const std::vector<std::filesystem::path>& plugins) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (first.find('/') != std::string::npos) return arguments;
  if (first != "train") {
    throw UsageError(format(
        "launch expects \"train\" or the path of a program, not {}: as in `stepforge launch --nproc 2 train "
        "run.toml` or `stepforge launch --nproc 2 ./loop`",
        arguments.empty() ? "nothing" : format("\"{}\"", first)));
  }
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  for (const std::filesystem::path& file : plugins) {
    command.emplace_back("--plugin");
    command.push_back(file.string());
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

int launch_command(LaunchOptions options, const std::vector<std::filesystem::path>& plugins) {
  options.command = rank_command(options.command, plugins);
  return launch(options, std::cerr);
}

}  // namespace stepforge
