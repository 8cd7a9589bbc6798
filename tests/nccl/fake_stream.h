// SPDX-License-Identifier: Apache-2.0
// A CUDA stream on the host: a thread that runs its work in order, after random delays, so work of different streams is in another order in
// every run. It includes nothing of CUDA, whose headers and cuda_on_cpu.h exclude each other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

/// CUDA's headers leave it open what a stream is.
struct CUstream_st {
 public:
  CUstream_st();
  /// Runs what is enqueued.
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  void enqueue(std::function<void()> work);
  void synchronize();

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool is_busy_ = false;
  bool stopping_ = false;
  std::mt19937 random_;
  std::thread thread_;
};
