// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include <fmt/args.h>
#include <fmt/format.h>

namespace stepforge {

std::string format_arguments(std::string_view pattern, const std::vector<FormatArgument>& arguments) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  for (const auto& argument : arguments) {
    std::visit([&store](const auto& value) { store.push_back(value); }, argument);
  }
  try {
    return fmt::vformat(pattern, store);
  } catch (const fmt::format_error& error) {
    throw std::invalid_argument(fmt::format("bad format pattern \"{}\": {}", pattern, error.what()));
  }
}

std::string with_thousands(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t position = digits.size(); position > first + 3;) {
    position -= 3;
    digits.insert(position, ",");
  }
  return digits;
}

std::string human_bytes(int64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (std::abs(value) >= (unit == 0 ? 1024.0 : 1023.95) && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits.at(unit));
}

std::string human_count(int64_t count) {
  static constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "B", "T"};
  auto value = static_cast<double>(count);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  return unit == 0 ? std::to_string(count) : fmt::format("{:.3g}{}", value, kUnits.at(unit));
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 59.95) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, (whole % 3600) / 60);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

namespace {
size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<size_t> row(right.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= left.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= right.size(); ++j) {
      const size_t substituted = diagonal + (left[i - 1] == right[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}
}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace stepforge
