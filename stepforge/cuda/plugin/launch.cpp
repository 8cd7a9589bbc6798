// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/plugin/launch.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

namespace stepforge::cuda_plugin {

void on_stream_of(const at::Tensor& tensor, c10::function_ref<void(cuda::Stream)> enqueue) {
  const c10::cuda::CUDAGuard guard(tensor.device());
  enqueue(c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

int compute_capability(const at::Tensor& tensor) {
  const int device = tensor.device().index();
  int major = 0;
  int minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

}  // namespace stepforge::cuda_plugin
