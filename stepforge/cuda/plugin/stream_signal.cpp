// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/plugin/stream_signal.h"

#include <atomic>
#include <new>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge::cuda_plugin {

namespace {

/// The driver's function by way of the run time: a library that is linked to the driver would not load without one.
PFN_cuStreamWaitValue32_v11070 wait_value_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  C10_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) throw Error("CUDA: the driver has no cuStreamWaitValue32");
  return reinterpret_cast<PFN_cuStreamWaitValue32_v11070>(function);
}

}  // namespace

StreamSignal::StreamSignal(c10::cuda::CUDAStream stream) : stream_(stream) {
  const c10::cuda::CUDAGuard guard(stream.device_index());
  void* memory = nullptr;
  C10_CUDA_CHECK(cudaHostAlloc(&memory, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped));
  number_ = new (memory) uint32_t(0);
}

StreamSignal::~StreamSignal() {
  // The stream may not have looked at the last number yet. At the end of the process CUDA may be gone.
  static_cast<void>(cudaStreamSynchronize(stream_.stream()));
  static_cast<void>(cudaFreeHost(number_));
}

void StreamSignal::hold(uint32_t number) const {
  static const PFN_cuStreamWaitValue32_v11070 wait_value = wait_value_function();
  const c10::cuda::CUDAGuard guard(stream_.device_index());
  const CUresult result =
      wait_value(stream_.stream(), reinterpret_cast<CUdeviceptr>(number_), number, CU_STREAM_WAIT_VALUE_GEQ);
  if (result != CUDA_SUCCESS)
    throw Error(
        format("CUDA: cuStreamWaitValue32: error {}: cannot hold a stream", static_cast<int>(result)));
}

void StreamSignal::write(uint32_t number) const {
  std::atomic_ref(*number_).store(number, std::memory_order_release);
}

}  // namespace stepforge::cuda_plugin
