// SPDX-License-Identifier: Apache-2.0
// One lane of communication: a thread that runs tasks in the order in which they are submitted.
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

/// A handle of a submitted task; copies refer to the same task.
class LaneTask {
 public:
  LaneTask() = default;
  explicit LaneTask(std::shared_future<void> done) : done_(std::move(done)) {}

  /// Whether this copy has a task that it has not waited for.
  explicit operator bool() const { return done_.valid(); }
  const std::shared_future<void>& future() const { return done_; }
  /// Waits until the task has ended and rethrows its exception. Afterwards this copy has no task.
  void wait();
  /// wait() for destructors, without rethrowing: on_failure has reported the exception, and every further
  /// collective throws.
  void wait_noexcept() noexcept;

 private:
  std::shared_future<void> done_;
};

class LaneWorker {
 public:
  /// If not `threaded`, submit() runs the task itself: for groups of one rank, whose tasks do not wait.
  /// `on_failure`, if given, is called with the reason when a task throws; it must end the waits of other
  /// ranks.
  explicit LaneWorker(bool threaded, std::function<void(const std::string&)> on_failure = {});
  /// Waits for all submitted tasks.
  ~LaneWorker();
  LaneWorker(const LaneWorker&) = delete;
  LaneWorker& operator=(const LaneWorker&) = delete;

  /// Call it from one thread only.
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
