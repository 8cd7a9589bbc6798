// SPDX-License-Identifier: Apache-2.0
// A test of a group's transport between GPUs, when the group is made.
#pragma once

#include <string_view>

#include "stepforge/comm/communicator.h"
#include "stepforge/cuda/nccl/gpu.h"

namespace stepforge::cuda_nccl {

/// test_collectives() of comm/self_test.h on device memory. NCCL connects two ranks when they first exchange something, and waits for both;
/// after this test all pairs of the group are connected, so calls of a training step are accepted at once. Throws Error.
void test_on_device(Communicator& group, std::string_view name, const Gpu& gpu);

}  // namespace stepforge::cuda_nccl
