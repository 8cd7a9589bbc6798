// SPDX-License-Identifier: Apache-2.0
// What NCCL's communicators need of the program that uses a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include <cuda_runtime_api.h>

namespace stepforge::cuda_nccl {

/// A GPU, its streams and its memory, as libtorch has them. Thread-safe.
class Gpu {
 public:
  Gpu() = default;
  virtual ~Gpu() = default;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  virtual int device() const = 0;
  /// Of the calling thread.
  virtual cudaStream_t current_stream() const = 0;
  /// Memory for work on the current stream. It may be given back as soon as that work is enqueued.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) const = 0;
  /// Whether `address` is in memory of GPUs.
  virtual bool owns(const void* address) const = 0;
};

/// The current device of this thread, while it exists.
class UseDevice {
 public:
  explicit UseDevice(int device);
  ~UseDevice();
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;

 private:
  std::optional<int> before_;  ///< if it was another one
};

/// Throws Error: "CUDA: record an event: out of memory".
void check_cuda(cudaError_t result, std::string_view operation);

}  // namespace stepforge::cuda_nccl
