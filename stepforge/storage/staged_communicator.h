// SPDX-License-Identifier: Apache-2.0
// Collectives on the memory of a device by an engine for host memory: what is sent is copied to pinned memory, the engine is
// called, and what arrives is copied back, all enqueued on a stream. So several ranks may share a GPU, and no NCCL is needed.
#pragma once

#include <memory>

#include "stepforge/comm/call_failure.h"
#include "stepforge/comm/communicator.h"
#include "stepforge/kernels/compute_device.h"

namespace stepforge {

/// Passes calls on to `engine`. Calls whose buffers are memory of `device` are enqueued on the caller's current stream and return
/// at once; they, and all later ones, throw what an earlier one has thrown. Buffers in host memory are for the engine, after
/// waiting for the calls that are enqueued.
std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> engine, const ComputeDevice& device,
                                     std::shared_ptr<CallFailure> failure);

}  // namespace stepforge
