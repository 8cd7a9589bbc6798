// SPDX-License-Identifier: Apache-2.0
// Any operation of libtorch on a simulated device: enqueued, and later run by the CPU's kernel on the device's memory.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "stepforge/sim/memory_map.h"

namespace stepforge::sim {

/// A tensor without an owner: work that is enqueued must not keep memory alive, or early reuse would never be seen.
struct TensorPlace {
  void* address = nullptr;  ///< of its first element, as tensors have it
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType type = at::kFloat;
  bool wrapped_number = false;

  explicit TensorPlace(const at::Tensor& tensor);
  /// From the first element to the last.
  Range range() const;
  /// For the work of a stream.
  at::Tensor for_streams() const;
};

/// The kernel of all operations that have none of their own (operations.cpp): asks the Meta kernel for the shapes of results,
/// allocates them, and enqueues the CPU's. Operations whose results have sizes that depend on data run while the host waits, and
/// are counted. Throws Error for tensors of the host other than single numbers.
void run_boxed(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace stepforge::sim
