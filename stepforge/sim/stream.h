// SPDX-License-Identifier: Apache-2.0
// A stream of a simulated device: a thread that runs work in the order in which it was enqueued, after random delays.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "stepforge/sim/race_detector.h"

namespace stepforge::sim {

/// How long streams wait before their work, so that they overtake each other.
struct Delays {
  uint64_t seed = 0;
  int64_t most_microseconds = 0;  ///< 0: none
};

class Stream {
 public:
  Stream(int number, int device, const Delays& delays);
  /// Runs what is enqueued.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int number() const { return number_; }
  int device() const { return device_; }

  /// For the thread that holds the machine's mutex: what the next work will know, and how much was enqueued.
  Clock clock;
  uint32_t enqueued = 0;

  /// The work of position `enqueued`.
  void push(std::function<void()> work);
  /// Whether the work up to `position` has finished.
  bool finished(uint32_t position) const { return done_.load(std::memory_order_acquire) >= position; }
  void wait(uint32_t position) const;
  /// What work that failed threw, "" if none did; until this is called, later work is skipped.
  std::string take_failure();

 private:
  void serve();
  void run(const std::function<void()>& work);
  void delay();

  int number_;
  int device_;
  const Delays& delays_;
  uint64_t delayed_ = 0;
  std::atomic<uint32_t> done_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::string failure_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace stepforge::sim
