// SPDX-License-Identifier: Apache-2.0
// A GPU for NCCL's communicators: libtorch's current streams and its caching allocator.
#include <memory>

#include "stepforge/cuda/plugin/backend.h"

#ifdef STEPFORGE_NCCL
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/cuda/nccl/nccl_engine.h"
#endif

namespace stepforge::cuda_plugin {

#ifdef STEPFORGE_NCCL

namespace {

class TorchGpu : public cuda_nccl::Gpu {
 public:
  explicit TorchGpu(c10::DeviceIndex device) : device_(device) {}

  int device() const override { return device_; }
  cudaStream_t current_stream() const override { return c10::cuda::getCurrentCUDAStream(device_).stream(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override {
    const c10::cuda::CUDAGuard guard(device_);
    namespace allocator = c10::cuda::CUDACachingAllocator;
    void* memory = nullptr;
    try {
      memory = allocator::raw_alloc_with_stream(bytes, current_stream());
    } catch (const c10::Error& error) {  // not an Error, which fails the group
      throw Error(format("CUDA: allocate {} bytes: {}", bytes, error.what_without_backtrace()));
    }
    return {static_cast<std::byte*>(memory), [](std::byte* address) { allocator::raw_delete(address); }};
  }
  bool owns(const void* address) const override { return is_gpu_memory(device_, address); }

 private:
  c10::DeviceIndex device_;
};

}  // namespace

std::shared_ptr<DeviceEngine> CudaBackend::engine(double seconds) {
  return cuda_nccl::nccl_engine(std::make_shared<TorchGpu>(device_), seconds);
}

#else

std::shared_ptr<DeviceEngine> CudaBackend::engine(double /*seconds*/) {
  return nullptr;
}

#endif

}  // namespace stepforge::cuda_plugin
