// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/plugin/backend.h"

#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define STEPFORGE_NVTX
#endif

namespace stepforge::cuda_plugin {

MemoryStats CudaBackend::memory() const {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_);
  return {.live_bytes = stats.requested_bytes[kAll].current,
          .peak_bytes = stats.requested_bytes[kAll].peak,
          .reserved_bytes = stats.reserved_bytes[kAll].current,
          .system_blocks = stats.num_device_alloc};
}

void CudaBackend::reset_peak() {
  c10::cuda::CUDACachingAllocator::resetPeakStats(device_);
}

void CudaBackend::mark(const std::string& what) {
#ifdef STEPFORGE_NVTX
  nvtxRangePop();  // without a range it does nothing
  nvtxRangePushA(what.c_str());
#endif
}

bool CudaBackend::owns(const void* address) const {
  if (address == nullptr) return false;
  const c10::cuda::CUDAGuard guard(device_);  // the query may make a context on the current device
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

void CudaBackend::enqueue_host_call(HostCall call) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_);
  HostCallQueue* queue = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<HostCallQueue>& own = queues_[stream.id()];
    if (own == nullptr) own = std::make_unique<HostCallQueue>(stream);
    queue = own.get();
  }
  queue->enqueue(std::move(call));
}

}  // namespace stepforge::cuda_plugin
