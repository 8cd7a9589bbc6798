// SPDX-License-Identifier: Apache-2.0
// The plug-in libstepforge_cuda.so: training.device = cuda.
#include <cstdlib>
#include <memory>
#include <string>

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "stepforge/cuda/plugin/backend.h"
#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/kernels/compute_device.h"

namespace stepforge::cuda_plugin {

namespace {

ComputeDevice open(int index) {
  const auto device = static_cast<c10::DeviceIndex>(index);
  c10::cuda::set_device(
      device);  // what this thread calls without naming a device makes no context on another GPU
  at::Context& context = at::globalContext();
  context.lazyInitDevice(c10::DeviceType::CUDA);
  // Products of fp32 are fp32, and sums of bf16 products are fp32, as on the CPU.
  context.setAllowTF32CuBLAS(false);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
  // Sums have one order, as in our kernels: flash's, and index_add_() of references. What libtorch cannot sum so throws.
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);  // at::empty() would write all of its memory
  return {.device = c10::Device(c10::DeviceType::CUDA, device),
          .backend = std::make_shared<CudaBackend>(device),
          .add_kernels = add_cuda_kernels};
}

}  // namespace

extern "C" DevicePlugin stepforge_device_plugin() {
  // Before CUDA starts: by default streams share 8 hardware queues, and a stream that waits for a call of the host could hold up others.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  // NCCL connects all ranks when a communicator is made, and waits for none of them in a step.
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  int devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {.devices = 0, .why_none = std::string("no GPU: ") + cudaGetErrorString(result), .open = nullptr};
  }
  return {.devices = devices, .why_none = devices == 0 ? "no GPU: the driver sees none" : "", .open = open};
}

}  // namespace stepforge::cuda_plugin
