// SPDX-License-Identifier: Apache-2.0
// The named values of one step, validation or event.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/metrics/names.h"

namespace stepforge {

struct MetricsRecord {
  std::string kind;      ///< "train", "validation" or "event"
  int64_t step = 0;      ///< finished optimizer steps; the first step is 1
  double wall_time = 0;  ///< seconds since 1970, UTC
  /// In display order; names from metrics/names.h.
  std::vector<std::pair<std::string, double>> values;
  /// Longer details, such as the tokens of each expert; the console does not show them.
  std::vector<std::pair<std::string, std::vector<double>>> lists = {};

  void add(std::string_view name, double value) { values.emplace_back(name, value); }

  std::optional<double> find(std::string_view name) const {
    for (const auto& [key, value] : values) {
      if (key == name) return value;
    }
    return std::nullopt;
  }
};

/// Seconds since 1970 by the system clock, for MetricsRecord::wall_time.
double wall_time_now();

}  // namespace stepforge
