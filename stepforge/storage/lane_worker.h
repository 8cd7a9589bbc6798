// SPDX-License-Identifier: Apache-2.0
// One lane (a thread) of communication: its tasks run in the order in which they are submitted, beside the
// thread that submits them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace stepforge {

/// A task under way on a lane. Copies are the same task.
class LaneTask {
 public:
  LaneTask() = default;
  explicit LaneTask(std::shared_future<void> done) : done_(std::move(done)) {}

  /// Whether there is a task that this copy has not waited for.
  explicit operator bool() const { return done_.valid(); }
  /// Returns when it has ended; throws what it threw. Afterwards this copy has no task.
  void wait();
  /// The same without throwing, for destructors: on_failure has reported the failure, and every further
  /// collective throws it again.
  void wait_noexcept() noexcept;

 private:
  std::shared_future<void> done_;
};

class LaneWorker {
 public:
  /// Without a thread tasks run where they are submitted: for groups of one rank, which wait for no other.
  /// `on_failure`, if given, is called with the reason when a task throws; it must wake other ranks.
  explicit LaneWorker(bool threaded, std::function<void(const std::string&)> on_failure = {});
  /// Waits for all submitted tasks.
  ~LaneWorker();
  LaneWorker(const LaneWorker&) = delete;
  LaneWorker& operator=(const LaneWorker&) = delete;

  /// From one thread only.
  LaneTask submit(std::function<void()> task);

 private:
  void serve();
  void run(const std::function<void()>& task) const;

  std::function<void(const std::string&)> on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;  ///< none if not threaded
};

}  // namespace stepforge
