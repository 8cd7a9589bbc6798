// c10d's durations and messages.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>

namespace stepforge {

/// At least one: 0 is no end at all to some of c10d's calls.
inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(std::min(seconds, 1e9) * 1000))));
}

/// libtorch appends its call stack to what went wrong.
inline std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

}  // namespace stepforge
