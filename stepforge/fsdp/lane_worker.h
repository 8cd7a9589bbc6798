// One lane of communication as a thread: what is given to it runs in that order, beside its giver.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace stepforge {

/// A task under way on a lane. Copies are the same task.
class LaneTask {
 public:
  LaneTask() = default;
  explicit LaneTask(std::shared_future<void> done) : done_(std::move(done)) {}

  /// Whether there is a task that nobody has waited for.
  explicit operator bool() const { return done_.valid(); }
  /// Returns when it has ended; throws what it threw. Nothing to wait for afterwards, in this copy.
  void wait();
  /// The same where nobody can be told: what it threw has woken the other ranks, and every further collective
  /// throws it again.
  void settle() noexcept;

 private:
  std::shared_future<void> done_;
};

class LaneWorker {
 public:
  /// Without a thread tasks run where they are submitted: for groups of one rank, which wait for nobody.
  /// `on_failure` is called with the reason when a task throws; it must wake other ranks.
  LaneWorker(bool threaded, std::function<void(const std::string&)> on_failure);
  /// Runs what has been submitted to its end.
  ~LaneWorker();
  LaneWorker(const LaneWorker&) = delete;
  LaneWorker& operator=(const LaneWorker&) = delete;

  /// From one thread only.
  LaneTask submit(std::function<void()> task);

 private:
  void serve();
  void run(const std::function<void()>& task) const;

  bool threaded_;
  std::function<void(const std::string&)> on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace stepforge
