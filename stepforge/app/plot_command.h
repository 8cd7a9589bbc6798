// SPDX-License-Identifier: Apache-2.0
// stepforge plot RUN...: the curves of one or more runs as one SVG.
#pragma once

#include <filesystem>
#include <vector>

namespace stepforge {

struct PlotOptions {
  /// Run folders, or metrics.jsonl files.
  std::vector<std::filesystem::path> runs;
  /// Empty: "plot.svg" in the run folder of a single run, else in the current folder.
  std::filesystem::path output;
};

/// Writes the picture atomically, prints where it is, returns 0. Throws UsageError naming what is missing.
int plot_command(const PlotOptions& options);

}  // namespace stepforge
