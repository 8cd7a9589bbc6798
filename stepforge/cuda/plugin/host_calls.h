// SPDX-License-Identifier: Apache-2.0
// Calls of the host in the order of a CUDA stream.
//
// CUDA's own (cudaLaunchHostFunc) will not do: all streams share the thread that runs them, so a call that waits for a peer would hold
// up the call of another stream for which that peer waits. Here each stream has a thread. It waits for an event, runs the call and
// writes the call's number to pinned memory, and cuStreamWaitValue32 holds the stream until the number is there. A held stream
// occupies nothing of the device, and streams in other hardware queues go on (CUDA_DEVICE_MAX_CONNECTIONS, plugin.cpp).
#pragma once

#include <memory>
#include <thread>

#include <c10/cuda/CUDAStream.h>

#include "stepforge/kernels/compute_device.h"

namespace stepforge::cuda_plugin {

class HostCallQueue {
 public:
  explicit HostCallQueue(c10::cuda::CUDAStream stream);
  /// Runs what is enqueued. The end of a call may come here too, because the call may own what owns this queue.
  ~HostCallQueue();
  HostCallQueue(const HostCallQueue&) = delete;
  HostCallQueue& operator=(const HostCallQueue&) = delete;

  /// Thread-safe. `call.run` must not throw; it is dropped, not run, if the device fails before its turn. Throws Error if the driver
  /// cannot hold a stream.
  void enqueue(HostCall call);

 private:
  struct State;
  static void serve(State& state);

  std::shared_ptr<State> state_;  ///< of both threads, whichever ends last
  std::thread thread_;
};

}  // namespace stepforge::cuda_plugin
