// Tokens per second between two log lines, by the steady clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace stepforge {

/// What happened between two calls of ThroughputMeter::take.
struct ThroughputWindow {
  int64_t tokens = 0;
  int64_t steps = 0;
  /// Time of the steps themselves; pauses are not in it.
  double seconds = 0;
  /// How much of `seconds` the steps waited for data.
  double data_seconds = 0;

  /// All 0 for an empty window.
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  double seconds_per_step() const { return steps > 0 ? seconds / static_cast<double>(steps) : 0; }
  double data_percent() const { return seconds > 0 ? 100 * data_seconds / seconds : 0; }
};

/// Counts tokens against time. Validation, and the part of a checkpoint that the step waits for, are pauses:
/// they are no training, and a rate that dips at each of them says nothing. The clock starts with the object.
/// One thread.
class ThroughputMeter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ThroughputMeter(Clock::time_point now = Clock::now()) : window_start_(now) {}

  /// After each step: its tokens (on this device) and the seconds it waited for data.
  void add_step(int64_t tokens, double data_seconds) {
    window_.tokens += tokens;
    window_.data_seconds += data_seconds;
    ++window_.steps;
  }

  /// Stops the clock until resume(). Pauses do not nest.
  void pause(Clock::time_point now = Clock::now()) {
    elapsed_ += now - window_start_;
    paused_ = true;
  }
  void resume(Clock::time_point now = Clock::now()) {
    window_start_ = now;
    paused_ = false;
  }

  /// The window that ends now; the next one begins.
  ThroughputWindow take(Clock::time_point now = Clock::now()) {
    if (!paused_) elapsed_ += now - window_start_;
    ThroughputWindow result = window_;
    result.seconds = std::chrono::duration<double>(elapsed_).count();
    window_ = {};
    elapsed_ = {};
    window_start_ = now;
    return result;
  }

 private:
  ThroughputWindow window_;
  Clock::time_point window_start_;
  /// Unpaused time of the window before window_start_.
  Clock::duration elapsed_{};
  bool paused_ = false;
};

}  // namespace stepforge
