// SPDX-License-Identifier: Apache-2.0
// Tokens and FLOPs per second between two log lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

namespace stepforge {

/// Totals between two calls of ThroughputMeter::take.
struct ThroughputWindow {
  int64_t tokens = 0;
  double flops = 0;
  int64_t steps = 0;
  double seconds = 0;       ///< of the steps themselves
  double data_seconds = 0;  ///< the part of `seconds` that the steps waited for data

  /// All 0 for an empty window.
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  double tflops() const { return seconds > 0 ? flops / seconds * 1e-12 : 0; }
  double seconds_per_step() const { return steps > 0 ? seconds / static_cast<double>(steps) : 0; }
  double data_percent() const { return seconds > 0 ? 100 * data_seconds / seconds : 0; }
};

/// Adds up tokens, FLOPs and time of steps. Time between steps (validation, samples, waiting for a
/// checkpoint) does not count. For one thread.
class ThroughputMeter {
 public:
  using Clock = std::chrono::steady_clock;

  void begin_step(Clock::time_point now = Clock::now()) { step_began_ = now; }

  /// The tokens and FLOPs of the step (on this device) and the seconds it waited for data. Returns the step's
  /// seconds.
  double end_step(int64_t tokens, double flops, double data_seconds, Clock::time_point now = Clock::now()) {
    const double seconds = std::chrono::duration<double>(now - step_began_).count();
    window_.tokens += tokens;
    window_.flops += flops;
    window_.data_seconds += data_seconds;
    window_.seconds += seconds;
    ++window_.steps;
    return seconds;
  }

  /// Returns the totals since the last call and starts again at zero.
  ThroughputWindow take() { return std::exchange(window_, {}); }

 private:
  ThroughputWindow window_;
  Clock::time_point step_began_{};
};

}  // namespace stepforge
