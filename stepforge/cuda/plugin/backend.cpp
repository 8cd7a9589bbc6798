// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/plugin/backend.h"

#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define STEPFORGE_NVTX
#endif

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge::cuda_plugin {

/// Installed as the handler of warnings of the thread that makes it.
class CudaBackend::WaitCounter : public c10::WarningHandler {
 public:
  WaitCounter() : outer_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN);
  }
  ~WaitCounter() override {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
    if (c10::WarningUtils::get_warning_handler() == this) c10::WarningUtils::set_warning_handler(outer_);
  }
  WaitCounter(const WaitCounter&) = delete;
  WaitCounter& operator=(const WaitCounter&) = delete;

  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing CUDA operation") == std::string::npos)
      outer_->process(warning);
    else
      ++waits_;
  }
  int64_t waits() const { return waits_; }

 private:
  c10::WarningHandler* outer_;
  int64_t waits_ = 0;
};

/// The stream is never destroyed: libtorch's allocator keeps free blocks by stream, and records an event on it when a tensor that was
/// used there is freed, which may be after this object.
c10::Stream CudaBackend::new_stream(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device.index());
  cudaStream_t stream = nullptr;
  const cudaError_t result = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (result != cudaSuccess)
    throw Error(format("CUDA: cannot create a stream: {}", cudaGetErrorString(result)));
  return c10::cuda::getStreamFromExternal(stream, device.index());
}

CudaBackend::CudaBackend(c10::DeviceIndex device) : device_(device) {}
CudaBackend::~CudaBackend() = default;

std::optional<int64_t> CudaBackend::host_waits() {
  if (waits_ == nullptr) waits_ = std::make_unique<WaitCounter>();
  return waits_->waits();
}

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
  return is_gpu_memory(device_, address);
}

bool is_gpu_memory(c10::DeviceIndex device, const void* address) {
  if (address == nullptr) return false;
  const c10::cuda::CUDAGuard guard(device);
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
