// Tokens per second between two log lines, by the steady clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

namespace stepforge {

/// What happened between two calls of ThroughputMeter::take.
struct ThroughputWindow {
  int64_t tokens = 0;
  int64_t steps = 0;
  /// Time of the steps themselves.
  double seconds = 0;
  /// How much of `seconds` the steps waited for data.
  double data_seconds = 0;

  /// All 0 for an empty window.
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  double seconds_per_step() const { return steps > 0 ? seconds / static_cast<double>(steps) : 0; }
  double data_percent() const { return seconds > 0 ? 100 * data_seconds / seconds : 0; }
};

/// Counts tokens against the time of steps. What lies between two steps (validation, samples, the part of a
/// checkpoint that the trainer waits for) is no training, and a rate that dips at each of them says nothing.
/// One thread.
class ThroughputMeter {
 public:
  using Clock = std::chrono::steady_clock;

  void begin_step(Clock::time_point now = Clock::now()) { step_began_ = now; }

  /// The tokens of the step (on this device) and the seconds it waited for data. Returns the step's seconds.
  double end_step(int64_t tokens, double data_seconds, Clock::time_point now = Clock::now()) {
    const double seconds = std::chrono::duration<double>(now - step_began_).count();
    window_.tokens += tokens;
    window_.data_seconds += data_seconds;
    window_.seconds += seconds;
    ++window_.steps;
    return seconds;
  }

  /// The steps since the last call.
  ThroughputWindow take() { return std::exchange(window_, {}); }

 private:
  ThroughputWindow window_;
  Clock::time_point step_began_{};
};

}  // namespace stepforge
