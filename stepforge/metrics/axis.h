// Axes with round numbers.
#pragma once

#include <string>
#include <vector>

namespace stepforge {

struct Axis {
  /// The range that is drawn.
  double low = 0;
  double high = 1;
  std::vector<double> ticks;
  /// One per tick, alike in unit and decimals: "0.5", "20k", "4e-4".
  std::vector<std::string> labels;
};

/// An axis whose ticks are multiples of 1, 2 or 5 times a power of ten, about `wanted_ticks` of them, over
/// [low, high]. `round_ends` widens the range to whole ticks. An empty or not finite range becomes one around
/// `low` (or 0 to 1).
Axis nice_axis(double low, double high, int wanted_ticks, bool round_ends);

/// A few significant digits for people: "1.25M", "6,120", "48.70", "3.125", "8e-4"; "–" for what is not
/// finite.
std::string short_number(double value);

}  // namespace stepforge
