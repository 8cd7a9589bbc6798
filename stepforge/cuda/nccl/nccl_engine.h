// SPDX-License-Identifier: Apache-2.0
// NCCL as the engine of GPUs (comm.backend = nccl).
#pragma once

#include <memory>

#include "stepforge/comm/device_engine.h"
#include "stepforge/cuda/nccl/gpu.h"

namespace stepforge::cuda_nccl {

/// A call fails with PeerError if its peers do not come within `seconds` after this GPU has come to it.
std::shared_ptr<DeviceEngine> nccl_engine(std::shared_ptr<const Gpu> gpu, double seconds);

}  // namespace stepforge::cuda_nccl
