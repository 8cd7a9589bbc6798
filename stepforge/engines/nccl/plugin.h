// SPDX-License-Identifier: Apache-2.0
// The border to libstepforge_nccl.so, which is loaded when [comm] asks for NCCL: it needs the CUDA libraries.
#pragma once

#include <functional>
#include <memory>

#include "stepforge/comm/communicator.h"

namespace stepforge {

struct NcclRequest {
  World* control = nullptr;  ///< over the same ranks, for host memory; outlives the result
  int device = 0;            ///< of this host
  double train_seconds = 100;
};

/// The exported function. The world's communicators take spans of this device's memory. Throws UsageError if
/// there is no such GPU.
using NcclEntry = std::unique_ptr<World> (*)(const NcclRequest& request);
inline constexpr const char* kNcclEntryName = "stepforge_nccl_entry";

/// Loads the plug-in beside this library and makes the world, which owns `control`. Throws UsageError if
/// there is no plug-in, if it cannot be loaded, or if there is no GPU.
std::unique_ptr<World> nccl_world(const std::function<std::unique_ptr<World>()>& make_control, int device,
                                  double train_seconds);

}  // namespace stepforge
