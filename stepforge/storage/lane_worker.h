// SPDX-License-Identifier: Apache-2.0
// One lane of communication: a thread that runs tasks in the order in which they are submitted, or a stream of a device.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "stepforge/kernels/compute_device.h"

namespace stepforge {

/// A handle of a submitted task; copies refer to the same task.
class LaneTask {
 public:
  LaneTask() = default;
  explicit LaneTask(std::shared_future<void> done, std::shared_ptr<c10::Event> on_device = nullptr)
      : done_(std::move(done)), on_device_(std::move(on_device)) {}

  /// Whether this copy has a task that it has not waited for.
  explicit operator bool() const { return done_.valid(); }
  /// What follows, here or on this thread's current stream, is after the task. Rethrows its exception. Afterwards this copy has
  /// no task.
  void wait();
  /// The same for the host, which may then use memory that the task has used on a device.
  void wait_on_host();
  /// wait() for destructors, without rethrowing: on_failure has reported the exception, and every further
  /// collective throws.
  void wait_noexcept() noexcept;

 private:
  std::shared_future<void> done_;
  std::shared_ptr<c10::Event> on_device_;  ///< of a stream, after the task; null for tasks of the host
};

class LaneWorker {
 public:
  /// If not `threaded`, submit() runs the task itself: for groups of one rank, whose tasks do not wait.
  /// `on_failure`, if given, is called with the reason when a task throws; it must end the waits of other
  /// ranks. On another `device` than the CPU the lane is a stream instead: submit() runs the task, which enqueues its work there,
  /// after what this thread's current stream has.
  explicit LaneWorker(bool threaded, std::function<void(const std::string&)> on_failure = {},
                      const ComputeDevice& device = cpu_device());
  /// Waits for all submitted tasks.
  ~LaneWorker();
  LaneWorker(const LaneWorker&) = delete;
  LaneWorker& operator=(const LaneWorker&) = delete;

  /// Call it from one thread only.
  LaneTask submit(std::function<void()> task);

 private:
  LaneTask enqueue(std::packaged_task<void()> task);
  void serve();
  void run(const std::function<void()>& task) const;

  std::function<void(const std::string&)> on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;  ///< none if not threaded
  std::optional<c10::Stream> stream_;
};

}  // namespace stepforge
