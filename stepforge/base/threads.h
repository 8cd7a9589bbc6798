// SPDX-License-Identifier: Apache-2.0
// A bounded queue between threads, and a loop over all cores.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

namespace stepforge {

/// First in, first out, for any number of producer and consumer threads. After close() push returns false,
/// and pop returns the remaining values and then nullopt.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  /// Waits while the queue is full. False if it was closed.
  bool push(T value) {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [this] { return closed_ || items_.size() < capacity_; });
    if (closed_) return false;
    items_.push_back(std::move(value));
    not_empty_.notify_one();
    return true;
  }

  /// Never waits. False if the queue is full or closed.
  bool try_push(T value) {
    const std::lock_guard lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(value));
    not_empty_.notify_one();
    return true;
  }

  /// Waits for a value; nullopt once the queue is closed and empty.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    T value = std::move(items_.front());
    items_.pop_front();
    not_full_.notify_one();
    return value;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    not_empty_.notify_all();
    not_full_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<T> items_;
  size_t capacity_;
  bool closed_ = false;
};

/// Calls body(i) for every i in [0, count) on up to `workers` threads (0 = all cores). The first exception is
/// rethrown in the caller after all threads have stopped.
void parallel_for_each(int64_t count, int workers, const std::function<void(int64_t)>& body);

/// The cores that this thread may run on.
int hardware_threads();

}  // namespace stepforge
