// SPDX-License-Identifier: Apache-2.0
// A stand-in for libtorch's flash kernels on the CPU, under the names by which libtorch calls them: documents of different lengths, plainly
// in fp64, results rounded once. It refuses by a failed expectation what they do not take, and leaves NaN where they leave what was in memory.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge::testing {

/// The calls so far, and the last one's arguments.
struct FlashCalls {
  int forward = 0;
  int backward = 0;
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  int64_t documents = 0;
};

FlashCalls& flash_calls();

}  // namespace stepforge::testing
