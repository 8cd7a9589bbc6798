// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/nccl/gpu.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge::cuda_nccl {

UseDevice::UseDevice(int device) {
  int before = 0;
  check_cuda(cudaGetDevice(&before), "ask for the current device");
  if (before == device) return;
  check_cuda(cudaSetDevice(device), "set the device");
  before_ = before;
}

UseDevice::~UseDevice() {
  if (before_) static_cast<void>(cudaSetDevice(*before_));
}

void check_cuda(cudaError_t result, std::string_view operation) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // clears it; the next call would report it again
  throw Error(format("CUDA: {}: {}", operation, cudaGetErrorString(result)));
}

}  // namespace stepforge::cuda_nccl
