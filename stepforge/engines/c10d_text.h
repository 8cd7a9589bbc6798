// SPDX-License-Identifier: Apache-2.0
// Conversion of c10d's durations and messages.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>

namespace stepforge {

/// At least one millisecond: for some of c10d's calls 0 means "no deadline".
inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(std::min(seconds, 1e9) * 1000))));
}

/// The message without the call stack that libtorch appends.
inline std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

}  // namespace stepforge
