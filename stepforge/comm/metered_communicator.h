// SPDX-License-Identifier: Apache-2.0
// Counts the bytes and the time of a group's calls, and for how long compute waits for them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// The totals of a group on one rank, over all its communicators. Several threads may add.
class GroupMeter {
 public:
  using Clock = std::chrono::steady_clock;

  void add_bytes(std::size_t bytes) {
    bytes_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  }
  void add_call(Clock::duration time) { add(calls_, time); }
  void add_wait(Clock::duration time) { add(waits_, time); }

  /// The bytes of whole messages, as `stepforge plan` counts them: all parts of what is gathered or summed.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  double call_seconds() const { return seconds(calls_); }
  double wait_seconds() const { return seconds(waits_); }

 private:
  using Nanoseconds = std::atomic<int64_t>;

  static void add(Nanoseconds& sum, Clock::duration time) {
    sum.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(),
                  std::memory_order_relaxed);
  }
  static double seconds(const Nanoseconds& sum) {
    return 1e-9 * static_cast<double>(sum.load(std::memory_order_relaxed));
  }

  std::atomic<int64_t> bytes_{0};
  Nanoseconds calls_{0};
  Nanoseconds waits_{0};
};

/// Adds the time of its life to a meter.
class WaitTimer {
 public:
  explicit WaitTimer(GroupMeter& meter) : meter_(meter) {}
  ~WaitTimer() { meter_.add_wait(GroupMeter::Clock::now() - began_); }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  GroupMeter& meter_;
  GroupMeter::Clock::time_point began_ = GroupMeter::Clock::now();
};

/// Passes all calls on to `group` and adds them to `meter`, which must outlive it. `waits`: compute waits while a
/// call runs; otherwise it overlaps with compute.
std::unique_ptr<Communicator> metered(std::unique_ptr<Communicator> group, GroupMeter& meter, bool waits);

}  // namespace stepforge
