// SPDX-License-Identifier: Apache-2.0
// The calls of a communicator that have not ended on the device, and a thread that watches them: the host learns of a failure and of a
// missing peer although it waits for the stream in which NCCL waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

namespace stepforge::cuda_nccl {

struct WatchOptions {
  int device = 0;
  double seconds =
      0;  ///< from the time at which the device has come to a call; afterwards the call has failed
  /// Of the thread, again and again while calls are pending; throws if one has failed.
  std::function<void()> check;
  /// Of the thread, once: a call has failed with this text, and is still pending. It must end what the stream waits for.
  std::function<void(const std::string& reason)> fail;
};

class PendingCalls {
 public:
  explicit PendingCalls(WatchOptions options);
  /// Waits for all calls.
  ~PendingCalls();
  PendingCalls(const PendingCalls&) = delete;
  PendingCalls& operator=(const PendingCalls&) = delete;

  /// A call that one thread at a time enqueues. Until end() it lasts as long as this object.
  class Call {
   public:
    /// `text` names it: "rank 2 was in all_reduce of 64 bytes fp32, call 3 of group "fsdp" (ranks 0, 2), by NCCL". Without a stream it has
    /// begun already.
    Call(PendingCalls& calls, std::string text, std::optional<cudaStream_t> stream);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    /// Everything is enqueued: the call ends when the stream has come here.
    void end(cudaStream_t stream);

   private:
    PendingCalls& calls_;
    bool is_enqueued_ = false;
  };

  /// Until none is pending.
  void wait();
  /// Makes the thread check calls that are pending at once.
  void check_now();

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::string text;
    cudaEvent_t begin = nullptr;             ///< null: it has begun
    cudaEvent_t end = nullptr;               ///< null: it is not enqueued yet
    std::optional<Clock::time_point> begun;  ///< seen by the thread
  };

  cudaEvent_t recorded(cudaStream_t stream);
  void recycle(cudaEvent_t event);
  void drop_last();
  void watch();
  std::string watch_once(std::unique_lock<std::mutex>& lock);
  std::string overdue();
  static bool has_passed(cudaEvent_t event);

  const WatchOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  std::vector<cudaEvent_t> events_;  ///< that are free
  int waiting_ = 0;                  ///< threads in wait()
  bool is_urgent_ = false;
  bool failed_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace stepforge::cuda_nccl
