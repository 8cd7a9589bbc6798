// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/plugin/host_calls.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include <c10/cuda/CUDAEvent.h>
#include <cuda_runtime_api.h>

#include "stepforge/cuda/plugin/stream_signal.h"

namespace stepforge::cuda_plugin {

struct HostCallQueue::State {
  struct Entry {
    c10::cuda::CUDAEvent ready;
    HostCall call;
    uint32_t number;
  };

  explicit State(c10::cuda::CUDAStream of_calls) : stream(of_calls), signal(of_calls) {}

  const c10::cuda::CUDAStream stream;
  const StreamSignal signal;
  // Two mutexes: CUDA blocks a thread that enqueues if a held stream is full, and the calls must go on meanwhile.
  std::mutex enqueue_mutex;
  uint32_t enqueued = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;
  bool stopping = false;
};

HostCallQueue::HostCallQueue(c10::cuda::CUDAStream stream)
    : state_(std::make_shared<State>(stream)), thread_([state = state_] { serve(*state); }) {}

HostCallQueue::~HostCallQueue() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void HostCallQueue::enqueue(HostCall call) {
  const std::lock_guard in_order(state_->enqueue_mutex);
  State::Entry entry{.ready = c10::cuda::CUDAEvent(cudaEventDisableTiming | cudaEventBlockingSync),
                     .call = std::move(call),
                     .number = state_->enqueued + 1};
  entry.ready.record(state_->stream);
  state_->signal.hold(entry.number);
  state_->enqueued = entry.number;
  {
    const std::lock_guard lock(state_->mutex);
    state_->entries.push_back(std::move(entry));
  }
  state_->changed.notify_all();
}

void HostCallQueue::serve(State& state) {
  static_cast<void>(cudaSetDevice(state.stream.device_index()));  // if it fails, so does the wait below
  for (;;) {
    std::unique_lock lock(state.mutex);
    state.changed.wait(lock, [&state] { return state.stopping || !state.entries.empty(); });
    if (state.entries.empty()) return;
    const State::Entry entry = std::move(state.entries.front());
    state.entries.pop_front();
    lock.unlock();
    // A device that has failed tells the program at its next call of CUDA; nobody needs this one.
    if (cudaEventSynchronize(entry.ready.event()) == cudaSuccess) entry.call.run();
    state.signal.write(entry.number);
  }
}

}  // namespace stepforge::cuda_plugin
