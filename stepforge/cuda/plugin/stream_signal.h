// SPDX-License-Identifier: Apache-2.0
// A number in pinned memory for which a CUDA stream waits until the host has written it.
#pragma once

#include <cstdint>

#include <c10/cuda/CUDAStream.h>

namespace stepforge::cuda_plugin {

class StreamSignal {
 public:
  explicit StreamSignal(c10::cuda::CUDAStream stream);
  /// Waits for the stream.
  ~StreamSignal();
  StreamSignal(const StreamSignal&) = delete;
  StreamSignal& operator=(const StreamSignal&) = delete;

  /// Holds the stream until `number`, or a later one, has been written. Numbers ascend, and may wrap around. Throws Error if the driver
  /// cannot do it.
  void hold(uint32_t number) const;
  /// Calls no function of CUDA.
  void write(uint32_t number) const;

 private:
  c10::cuda::CUDAStream stream_;
  uint32_t* number_ = nullptr;
};

}  // namespace stepforge::cuda_plugin
