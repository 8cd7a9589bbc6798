// SPDX-License-Identifier: Apache-2.0
// The stream and the GPU of a tensor. It includes nothing of CUDA: the functions of kernels.h compile without it, and tests run them on the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "stepforge/cuda/stream.h"

namespace stepforge::cuda_plugin {

/// Calls enqueue(stream) with the current stream of the tensor's device, which is the current device meanwhile. Throws c10::Error if
/// a launch fails.
void on_stream_of(const at::Tensor& tensor, c10::function_ref<void(cuda::Stream)> enqueue);

/// The compute capability of the tensor's GPU: 90 for 9.0.
int compute_capability(const at::Tensor& tensor);

}  // namespace stepforge::cuda_plugin
