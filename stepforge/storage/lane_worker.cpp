// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/lane_worker.h"

#include <utility>

#include <c10/core/StreamGuard.h>

#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/kernels/streams.h"

extern "C" void omp_set_num_threads(int threads);  // of omp.h, whose gcc version clang-tidy cannot read

namespace stepforge {

void LaneTask::wait() {
  if (!done_.valid()) return;
  if (const auto event = std::exchange(on_device_, nullptr)) event->block(current_stream(event->device()));
  std::exchange(done_, {}).get();
}

void LaneTask::wait_on_host() {
  if (!done_.valid()) return;
  if (const auto event = std::exchange(on_device_, nullptr)) event->synchronize();
  std::exchange(done_, {}).get();
}

void LaneTask::wait_noexcept() noexcept {
  try {
    wait();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): reported by on_failure
  }
}

LaneWorker::LaneWorker(bool threaded, std::function<void(const std::string&)> on_failure,
                       const ComputeDevice& device)
    : on_failure_(std::move(on_failure)) {
  if (!device.device.is_cpu()) {
    stream_ = device.backend->new_stream(device.device);
  } else if (threaded) {
    thread_ = std::thread([this, memory = charged_memory()] {
      const ChargeMemory charge(memory);
      serve();
    });
  }
}

LaneWorker::~LaneWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

LaneTask LaneWorker::submit(std::function<void()> task) {
  std::packaged_task<void()> packaged([this, task = std::move(task)] { run(task); });
  if (stream_) return enqueue(std::move(packaged));
  LaneTask handle(packaged.get_future().share());
  if (!thread_.joinable()) {
    packaged();
    return handle;
  }
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(packaged));
  }
  changed_.notify_all();
  return handle;
}

LaneTask LaneWorker::enqueue(std::packaged_task<void()> task) {
  put_after(current_stream(stream_->device()), *stream_);
  const auto end = std::make_shared<c10::Event>(stream_->device_type());
  LaneTask handle(task.get_future().share(), end);
  {
    const c10::StreamGuard guard(*stream_);
    task();
  }
  end->record(*stream_);
  return handle;
}

void LaneWorker::serve() {
  omp_set_num_threads(1);  // its copies and sums run concurrently with the compute threads
  for (;;) {
    std::packaged_task<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void LaneWorker::run(const std::function<void()>& task) const {
  try {
    task();
  } catch (const std::exception& failure) {
    if (on_failure_) on_failure_(failure.what());
    throw;
  }
}

}  // namespace stepforge
