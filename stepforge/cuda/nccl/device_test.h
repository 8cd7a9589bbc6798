// SPDX-License-Identifier: Apache-2.0
// A test of a group's transport between GPUs, when the group is made.
#pragma once

#include <string_view>

#include "stepforge/comm/communicator.h"
#include "stepforge/cuda/nccl/gpu.h"

namespace stepforge::cuda_nccl {

/// all_gather, reduce_scatter and broadcast of a few numbers in device memory, as comm/self_test.h tests host memory: each rank has numbers
/// of its own, so that wrong partners show. Its messages go between all pairs of the group, because NCCL connects two ranks when they first
/// exchange something, and waits for both: a training step should find them connected. Throws Error.
void test_on_device(Communicator& group, std::string_view name, const Gpu& gpu);

}  // namespace stepforge::cuda_nccl
