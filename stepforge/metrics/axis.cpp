#include "stepforge/metrics/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// The smallest of 1, 2, 5 times a power of ten that is at least `least` (a positive number).
double nice_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    // The factor allows for rounding in log10 and pow.
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

/// "8e-4" rather than "8.0e-04".
std::string plain_exponent(std::string text) {
  const size_t zero = text.find(".0e");
  if (zero != std::string::npos) text.erase(zero, 2);
  size_t digits = text.find('e') + 1;
  if (text[digits] == '+') text.erase(digits, 1);
  if (text[digits] == '-') ++digits;
  while (digits + 1 < text.size() && text[digits] == '0') text.erase(digits, 1);
  return text;
}

/// Decimals that a multiple of `step` needs.
int decimals_of(double step) {
  return std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
}

std::string tick_label(double tick, double step, double largest) {
  if (tick == 0) return "0";
  if (largest < 1e-2 || largest >= 1e13) {
    const int exponent = static_cast<int>(std::floor(std::log10(largest) + 1e-9));
    const double unit = std::pow(10, exponent);
    return format("{:.{}f}e{}", tick / unit, decimals_of(step / unit), exponent);
  }
  struct Unit {
    double size;
    const char* suffix;
  };
  for (const Unit unit : {Unit{1e9, "B"}, Unit{1e6, "M"}, Unit{1e3, "k"}}) {
    if (largest >= 10 * unit.size || (largest >= unit.size && unit.size > 1e3)) {
      return format("{:.{}f}{}", tick / unit.size, decimals_of(step / unit.size), unit.suffix);
    }
  }
  if (step >= 1) return with_thousands(static_cast<int64_t>(std::llround(tick)));
  return format("{:.{}f}", tick, decimals_of(step));
}

}  // namespace

Axis nice_axis(double low, double high, int wanted_ticks, bool round_ends) {
  if (!std::isfinite(low) || !std::isfinite(high)) {
    low = 0;
    high = 1;
  }
  // Beyond these, the difference of two values or a tick's label is no longer a number.
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
  Axis axis;
  const double first = round_ends ? std::floor(low / step + 1e-9) : std::ceil(low / step - 1e-9);
  const double last = round_ends ? std::ceil(high / step - 1e-9) : std::floor(high / step + 1e-9);
  axis.low = round_ends ? first * step : low;
  axis.high = round_ends ? last * step : high;
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  for (double index = first; index <= last; ++index) {
    axis.ticks.push_back(index * step);
    axis.labels.push_back(tick_label(axis.ticks.back(), step, largest));
  }
  return axis;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size >= 1e15) return plain_exponent(format("{:.1e}", value));
  if (size >= 1e6) return human_count(std::llround(value));
  if (size >= 1000) return with_thousands(std::llround(value));
  if (size >= 100) return format("{:.1f}", value);
  if (size >= 10) return format("{:.2f}", value);
  if (size >= 1e-2 || value == 0) return format("{:.3f}", value);
  return plain_exponent(format("{:.1e}", value));
}

}  // namespace stepforge
