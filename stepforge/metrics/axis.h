// SPDX-License-Identifier: Apache-2.0
// Axes with round numbers.
#pragma once

#include <string>
#include <vector>

namespace stepforge {

struct Axis {
  double low = 0;  ///< the range that is drawn
  double high = 1;
  std::vector<double> ticks;
  std::vector<std::string> labels;  ///< one per tick, all in one unit: "0.5", "20k", "4e-4"
};

/// An axis over [low, high] with about `wanted_ticks` ticks at multiples of 1, 2 or 5 times a power of ten.
/// `round_ends` widens the range to whole ticks. A range without extent is widened; one that is not finite
/// becomes [0, 1].
Axis nice_axis(double low, double high, int wanted_ticks, bool round_ends);

/// A few significant digits: "1.25M", "6,120", "48.70", "3.125", "8e-4"; "–" if `value` is not finite.
std::string short_number(double value);

}  // namespace stepforge
