// SPDX-License-Identifier: Apache-2.0
// `stepforge plot`.
#include <iostream>
#include <string>

#include "stepforge/app/commands.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "stepforge/metrics/plot.h"

namespace stepforge {

namespace fs = std::filesystem;

int plot_command(const PlotOptions& options) {
  fs::path output = options.output;
  if (output.empty()) {
    const fs::path& run = options.runs.front();
    output = options.runs.size() == 1 && fs::is_directory(run) ? run / "plot.svg" : fs::path("plot.svg");
  }
  if (fs::is_directory(output)) {
    throw UsageError(format("--output {}: this is a folder; name the SVG file to write", output.string()));
  }
  std::vector<RunSeries> runs;
  const PlotX x = options.x == "tokens" ? PlotX::tokens : options.x == "hours" ? PlotX::hours : PlotX::steps;
  for (const fs::path& run : options.runs) runs.push_back(read_run_series(run, x));
  write_file_atomic(output, plot_svg(runs, {.x = x, .logarithmic = options.logarithmic}));
  std::cout << format("wrote {} ({} {})\n", output.string(), runs.size(), runs.size() == 1 ? "run" : "runs");
  return 0;
}

}  // namespace stepforge
