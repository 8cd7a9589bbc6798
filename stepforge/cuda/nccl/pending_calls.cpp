// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/nccl/pending_calls.h"

#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/cuda/nccl/gpu.h"

namespace stepforge::cuda_nccl {

namespace {
// A failure may be seen late; a thread that waits for the end of calls should not wait longer than they take.
constexpr std::chrono::milliseconds kWatchTime(20);
constexpr std::chrono::microseconds kWaitTime(100);
}  // namespace

PendingCalls::PendingCalls(WatchOptions options)
    : options_(std::move(options)), thread_([this] { watch(); }) {}

PendingCalls::~PendingCalls() {
  wait();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

PendingCalls::Call::Call(PendingCalls& calls, std::string text, std::optional<cudaStream_t> stream)
    : calls_(calls) {
  Entry entry{.text = std::move(text), .begin = nullptr, .end = nullptr, .begun = {}};
  // Not under the mutex: a stream that is full blocks this thread.
  if (stream) entry.begin = calls_.recorded(*stream);
  {
    const std::lock_guard lock(calls_.mutex_);
    calls_.entries_.push_back(std::move(entry));
  }
  calls_.changed_.notify_all();
}

PendingCalls::Call::~Call() {
  if (!is_enqueued_) calls_.drop_last();
}

void PendingCalls::Call::end(cudaStream_t stream) {
  cudaEvent_t event = calls_.recorded(stream);
  const std::lock_guard lock(calls_.mutex_);
  calls_.entries_.back().end = event;
  is_enqueued_ = true;
}

void PendingCalls::wait() {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return entries_.empty(); });
  --waiting_;
}

void PendingCalls::check_now() {
  {
    const std::lock_guard lock(mutex_);
    is_urgent_ = true;
  }
  changed_.notify_all();
}

cudaEvent_t PendingCalls::recorded(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (event == nullptr)
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event");
  const cudaError_t result = cudaEventRecord(event, stream);
  if (result != cudaSuccess) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  check_cuda(result, "record an event");
  return event;
}

void PendingCalls::recycle(cudaEvent_t event) {
  if (event != nullptr) events_.push_back(event);
}

void PendingCalls::drop_last() {
  const std::lock_guard lock(mutex_);
  recycle(entries_.back().begin);
  entries_.pop_back();
  changed_.notify_all();
}

/// A device that has failed passes no events; the program hears of it from every call of CUDA.
bool PendingCalls::has_passed(cudaEvent_t event) {
  return event == nullptr || cudaEventQuery(event) != cudaErrorNotReady;
}

/// Takes away the calls that have ended. Returns the text of the first one if it takes too long. They end in order, since NCCL runs those
/// of a communicator one after another.
std::string PendingCalls::overdue() {
  while (!entries_.empty()) {
    Entry& first = entries_.front();
    if (!first.begun && has_passed(first.begin)) first.begun = Clock::now();
    if (!first.begun) return "";
    if (first.end == nullptr || !has_passed(first.end)) {
      const std::chrono::duration<double> time = Clock::now() - *first.begun;
      return time.count() > options_.seconds ? first.text : "";
    }
    recycle(first.begin);
    recycle(first.end);
    entries_.pop_front();
  }
  changed_.notify_all();
  return "";
}

/// The reason of a failure, or "".
std::string PendingCalls::watch_once(std::unique_lock<std::mutex>& lock) {
  const std::string late = overdue();
  if (failed_ || entries_.empty()) return "";
  if (!late.empty()) return format("no answer within {} s: {}", options_.seconds, late);
  const std::string text = entries_.front().text;
  lock.unlock();
  std::string reason;
  try {
    options_.check();
  } catch (const Error& error) {
    reason = format("{}; {}", error.what(), text);
  }
  lock.lock();
  return reason;
}

void PendingCalls::watch() {
  static_cast<void>(cudaSetDevice(options_.device));  // if it fails, so do the calls of the others
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !entries_.empty(); });
    if (entries_.empty()) return;
    is_urgent_ = false;
    if (const std::string reason = watch_once(lock); !reason.empty()) {
      failed_ = true;
      lock.unlock();
      options_.fail(reason);
      lock.lock();
    }
    if (entries_.empty()) continue;
    if (waiting_ > 0) {
      changed_.wait_for(lock, kWaitTime);
    } else {
      changed_.wait_for(lock, kWatchTime, [this] { return waiting_ > 0 || is_urgent_; });
    }
  }
}

}  // namespace stepforge::cuda_nccl
