// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/axis.h"

#include <algorithm>
#include <cmath>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

int exponent_of(double size) {
  return static_cast<int>(std::floor(std::log10(size) + 1e-9));
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `least` (a positive number).
double nice_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    // Allows for rounding in log10 and pow.
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string tick_label(double tick, double step, double largest) {
  if (tick == 0) return "0";
  double unit = 1;
  std::string suffix;
  if (largest < 1e-2 || largest >= 1e13) {
    unit = std::pow(10, exponent_of(largest));
    suffix = format("e{}", exponent_of(largest));
  } else if (largest >= 1e4) {
    unit = largest >= 1e9 ? 1e9 : largest >= 1e6 ? 1e6 : 1e3;
    suffix = largest >= 1e9 ? "B" : largest >= 1e6 ? "M" : "k";
  } else if (step >= 1) {
    return with_thousands(std::llround(tick));
  }
  return format("{:.{}f}{}", tick / unit, std::max(0, -exponent_of(step / unit)), suffix);
}

/// "8e-4" where {:.1e} writes "8.0e-04".
std::string scientific(double value) {
  const std::string text = format("{:.1e}", value);
  const size_t e = text.find('e');
  const size_t digits = text.substr(0, e).ends_with(".0") ? e - 2 : e;
  return format("{}e{}", text.substr(0, digits), std::stoi(text.substr(e + 1)));
}

}  // namespace

Axis nice_axis(double low, double high, int wanted_ticks, bool round_ends) {
  if (!std::isfinite(low) || !std::isfinite(high)) {
    low = 0;
    high = 1;
  }
  // Beyond these, the difference of two values or a tick's label overflows.
  low = std::clamp(low, -1e300, 1e300);
  high = std::clamp(high, -1e300, 1e300);
  const double size = std::max(std::abs(low), std::abs(high));
  if (size < 1e-300) low = high = 0;
  // Narrower than this, ticks would be equal after rounding.
  if (!(high - low > size * 1e-6)) {
    const double middle = (low + high) / 2;
    const double margin = middle == 0 ? 0.5 : std::abs(middle) / 2;
    low = middle - margin;
    high = middle + margin;
  }
  const double step = nice_step((high - low) / std::max(1, wanted_ticks));
  const double first = round_ends ? std::floor(low / step + 1e-9) : std::ceil(low / step - 1e-9);
  const double last = round_ends ? std::ceil(high / step - 1e-9) : std::floor(high / step + 1e-9);
  Axis axis{round_ends ? first * step : low, round_ends ? last * step : high, {}, {}};
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  for (double index = first; index <= last; ++index) {
    axis.ticks.push_back(index * step);
    axis.labels.push_back(tick_label(axis.ticks.back(), step, largest));
  }
  return axis;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return "–";
  if (size >= 1e15 || (size < 1e-2 && value != 0)) return scientific(value);
  if (size >= 1e6) return human_count(std::llround(value));
  if (size >= 1000) return with_thousands(std::llround(value));
  return format("{:.{}f}", value, size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

}  // namespace stepforge
