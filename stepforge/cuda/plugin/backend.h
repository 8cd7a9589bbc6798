// SPDX-License-Identifier: Apache-2.0
// DeviceBackend for a GPU: memory statistics of libtorch's allocator, ranges of NVTX, calls of the host.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "stepforge/cuda/plugin/host_calls.h"
#include "stepforge/kernels/compute_device.h"

namespace stepforge::cuda_plugin {

/// Whether `address` is in memory of GPUs. `device`: on which to ask, because that may make a context on the current one.
bool is_gpu_memory(c10::DeviceIndex device, const void* address);

class CudaBackend : public DeviceBackend {
 public:
  explicit CudaBackend(c10::DeviceIndex device);
  ~CudaBackend() override;

  /// Of all ranks of this process that share the GPU.
  MemoryStats memory() const override;
  void reset_peak() override;
  /// Does nothing: the allocator can give back memory only by waiting for the device, and does so by itself when it runs out.
  void trim() override {}
  /// By libtorch's debug mode for synchronization, which the first call turns on: waits for streams and copies to the host.
  /// Waits for events, as for pinned memory that is used again, are not among them.
  std::optional<int64_t> host_waits() override;
  void mark(const std::string& what) override;
  /// Not of libtorch's pool, whose 32 streams several ranks of a process would share.
  c10::Stream new_stream(c10::Device device) override;
  bool owns(const void* address) const override;
  void enqueue_host_call(HostCall call) override;
  /// NCCL, if it was there when this was built (nccl_gpu.cpp).
  std::shared_ptr<DeviceEngine> engine(double seconds) override;

 private:
  /// Counts the warnings of that mode, and passes others on.
  class WaitCounter;

  c10::DeviceIndex device_;
  std::unique_ptr<WaitCounter> waits_;  ///< null: host_waits() was not called yet
  std::mutex mutex_;
  std::map<c10::StreamId, std::unique_ptr<HostCallQueue>> queues_;
};

}  // namespace stepforge::cuda_plugin
