// SPDX-License-Identifier: Apache-2.0
// Collectives on the memory of a device by an engine for host memory: what is sent is copied to pinned memory, the engine is
// called, and what arrives is copied back, all enqueued on a stream. So several ranks may share a GPU, and no NCCL is needed.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "stepforge/comm/communicator.h"
#include "stepforge/kernels/compute_device.h"

namespace stepforge {

/// The first failure of the enqueued calls of a rank. Thread-safe.
class CallFailure {
 public:
  /// `on_failure` is called with the reason when a call fails for the first time; it must wake those that wait for this rank.
  explicit CallFailure(std::function<void(const std::string&)> on_failure)
      : on_failure_(std::move(on_failure)) {}

  /// From now on on_failure is not called.
  void close();
  void set(std::exception_ptr failure, const std::string& reason);
  /// Throws it; nothing if there is none.
  void rethrow();

 private:
  std::mutex mutex_;
  std::function<void(const std::string&)> on_failure_;
  std::exception_ptr failure_;
};

/// Passes calls on to `engine`. Calls whose buffers are memory of `device` are enqueued on the caller's current stream and return
/// at once; they, and all later ones, throw what an earlier one has thrown. Buffers in host memory are for the engine, after
/// waiting for the calls that are enqueued.
std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> engine, const ComputeDevice& device,
                                     std::shared_ptr<CallFailure> failure);

}  // namespace stepforge
