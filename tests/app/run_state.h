// SPDX-License-Identifier: Apache-2.0
// What a running or finished run has done so far: its checkpoints, losses and processes.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <sys/types.h>

#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/tensorfile/manifest.h"
#include "tests/support/small_run.h"

namespace stepforge::testing {

/// The steps with a complete checkpoint, newest first.
inline std::vector<int64_t> saved_steps(const std::filesystem::path& run) {
  std::vector<int64_t> steps;
  for (const CheckpointFolder& folder : list_checkpoints(run / "checkpoint")) steps.push_back(folder.step);
  return steps;
}

/// 0 if there is none.
inline int64_t newest_step(const std::filesystem::path& run) {
  const std::vector<int64_t> steps = saved_steps(run);
  return steps.empty() ? 0 : steps.front();
}

/// "kind step loss" of every line of metrics.jsonl.
inline Strings losses(const std::filesystem::path& run) {
  Strings lines;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    const char* loss =
        json["kind"] == "train" ? "loss_metrics/global_avg_loss" : "validation_metrics/global_avg_loss";
    lines.push_back(format("{} {} {}", json["kind"].get<std::string>(), json["step"].get<int64_t>(),
                           json[loss].get<double>()));
  }
  return lines;
}

/// Process ids of the children of `parent`.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
      continue;
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos) continue;
    char state = 0;
    pid_t of = 0;
    std::istringstream(stat.substr(name_end + 1)) >> state >> of;
    if (of == parent) children.push_back(std::stoi(name));
  }
  std::sort(children.begin(), children.end());
  return children;
}

}  // namespace stepforge::testing
