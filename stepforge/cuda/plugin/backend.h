// SPDX-License-Identifier: Apache-2.0
// DeviceBackend for a GPU: memory statistics of libtorch's allocator, ranges of NVTX, calls of the host.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "stepforge/cuda/plugin/host_calls.h"
#include "stepforge/kernels/compute_device.h"

namespace stepforge::cuda_plugin {

class CudaBackend : public DeviceBackend {
 public:
  explicit CudaBackend(c10::DeviceIndex device) : device_(device) {}

  /// Of all ranks of this process that share the GPU.
  MemoryStats memory() const override;
  void reset_peak() override;
  /// Does nothing: the allocator can give back memory only by waiting for the device, and does so by itself when it runs out.
  void trim() override {}
  void mark(const std::string& what) override;
  bool owns(const void* address) const override;
  void enqueue_host_call(HostCall call) override;

 private:
  c10::DeviceIndex device_;
  std::mutex mutex_;
  std::map<c10::StreamId, std::unique_ptr<HostCallQueue>> queues_;
};

}  // namespace stepforge::cuda_plugin
