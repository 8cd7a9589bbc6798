// SPDX-License-Identifier: Apache-2.0
// Training curves as a picture.
#pragma once

#include <string>
#include <vector>

#include "stepforge/metrics/run_series.h"

namespace stepforge {

struct Axis {
  double low = 0;  ///< the range that is drawn
  double high = 1;
  std::vector<double> ticks;
  std::vector<std::string> labels;  ///< one per tick, all in one unit: "0.5", "20k", "4e-4"
};

/// An axis over [low, high] with about `wanted_ticks` ticks at multiples of 1, 2 or 5 times a power of ten.
/// `round_ends` widens the range to whole ticks. An empty range is widened; one that is not finite becomes
/// [0, 1], and one beyond 1e300 is cut there.
Axis nice_axis(double low, double high, int wanted_ticks, bool round_ends);

/// A few significant digits: "1.25M", "6,120", "48.70", "3.125", "8e-4"; "–" if `value` is not finite.
std::string short_number(double value);

struct PlotStyle {
  PlotX x = PlotX::steps;    ///< the x axis that the runs were read with
  bool logarithmic = false;  ///< loss and gradient norm; values that are not positive become gaps
};

/// An axis over the logarithms to base 10 of [low, high], which are positive.
Axis log_axis(double low, double high);

/// One SVG with four panels (loss with validation, gradient norm, learning rate, tokens per second) and a
/// table of the runs with their last values (of the loss, of its smoothed curve) and the best validation. It has no scripts
/// and no outside references. Where a run was continued there is a line, red after a kill or a failure. Rare peaks of the
/// gradient norm are cut; the panel then states the highest value.
std::string plot_svg(const std::vector<RunSeries>& runs, const PlotStyle& style = {});

}  // namespace stepforge
