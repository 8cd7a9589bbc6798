// SPDX-License-Identifier: Apache-2.0
// The curves of a run, read from its metrics.jsonl.
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace stepforge {

/// Points in ascending order of their steps. A NaN in `y` is a gap.
struct Curve {
  std::vector<double> x;
  std::vector<double> y;

  void add(double step, double value) {
    x.push_back(step);
    y.push_back(value);
  }
  bool empty() const { return x.empty(); }
  /// The last finite value, NaN if there is none.
  double last() const;
};

/// What a plot shows of one run.
struct RunSeries {
  std::string name;  ///< of its folder
  Curve loss, validation_loss, grad_norm, lr, tokens_per_second;
  double tokens_seen = std::numeric_limits<double>::quiet_NaN();
};

/// Reads `run`, a run folder or a metrics file. A partial last line is ignored; values that are not finite
/// become gaps. Throws UsageError if the file is missing or has no training step, FormatError if it is
/// malformed; both name the path.
RunSeries read_run_series(const std::filesystem::path& run);

/// The curve smoothed for display: each point is the mean of its neighbours on both sides with exponentially
/// falling weights (1/e over a 200th of the points, at least 2), so that it does not lag. Gaps stay.
Curve smoothed_curve(const Curve& curve);

/// A curve that looks the same on `columns` columns with at most four points each: the first, lowest, highest
/// and last of the column, in order. Gaps stay. A curve that is short enough is returned unchanged.
Curve thinned_curve(const Curve& curve, int columns);

}  // namespace stepforge
