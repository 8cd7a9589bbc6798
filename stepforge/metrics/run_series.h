// SPDX-License-Identifier: Apache-2.0
// The curves of a run, read from its metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace stepforge {

/// Points in ascending order of their steps; `x` counts steps, tokens or hours. A NaN in `y` is a gap.
struct Curve {
  std::vector<double> x;
  std::vector<double> y;

  void add(double at, double value) {
    x.push_back(at);
    y.push_back(value);
  }
  bool empty() const { return x.empty(); }
  /// The last finite value, NaN if there is none.
  double last() const;
};

/// What the x axis of a plot counts; hours are those of training, without the pauses between starts.
enum class PlotX : uint8_t { steps, tokens, hours };

/// Where a run was continued.
struct ResumeMark {
  double x = 0;
  bool died = false;  ///< the start before was killed or failed
};

/// What a plot shows of one run.
struct RunSeries {
  std::string name;   ///< of its folder
  int64_t steps = 0;  ///< of the last record
  std::vector<ResumeMark> resumes;
  Curve loss, validation_loss, grad_norm, lr, tokens_per_second;
  double tokens_seen = std::numeric_limits<double>::quiet_NaN();
};

/// Reads `run`, a run folder or a metrics file, with run.json beside it if that is there. A partial last line is ignored; values that are not finite
/// become gaps. Throws UsageError if the file is missing or has no training step, FormatError if it is
/// malformed; both name the path.
RunSeries read_run_series(const std::filesystem::path& run, PlotX x = PlotX::steps);

/// The curve smoothed for display: each point is on the line that fits its neighbours on both sides best, with exponentially
/// falling weights (1/e over a 200th of the points, at least 2), so that it does not lag, at the ends either. Gaps stay.
Curve smoothed_curve(const Curve& curve);

/// A curve that looks the same on `columns` columns with at most four points each: the first, lowest, highest
/// and last of the column, in order. Gaps stay. A curve that is short enough is returned unchanged.
Curve thinned_curve(const Curve& curve, int columns);

}  // namespace stepforge
