// SPDX-License-Identifier: Apache-2.0
// The few functions of the CUDA runtime that stepforge/cuda/nccl calls, on the host. What is found to be wrong is a fault.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/nccl/fake_stream.h"

namespace stepforge::testing {

/// What all GPUs of the process share. Thread-safe.
class FakeCuda {
 public:
  static FakeCuda& get();

  std::byte* allocate(std::size_t bytes);
  void free(std::byte* memory);
  bool owns(const void* address);

  void fault(const std::string& text);
  /// Takes them away.
  std::vector<std::string> faults();
  /// Pieces of memory and events that exist.
  int allocations();
  int events();
  void count_event(int change);
  /// For a stream: 0, 1, ...
  unsigned next_stream();

  /// The bus of a device: two with one bus are one GPU.
  void set_bus(int device, int bus);
  int bus(int device);

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::vector<std::byte>> memory_;
  std::vector<std::string> faults_;
  std::map<int, int> buses_;
  int events_ = 0;
  unsigned streams_ = 0;
};

}  // namespace stepforge::testing
