// SPDX-License-Identifier: Apache-2.0
// The interface of the plug-in libstepforge_nccl.so, which needs the CUDA libraries and is loaded if [comm]
// selects NCCL.
#pragma once

#include <functional>
#include <memory>

#include "stepforge/comm/communicator.h"

namespace stepforge {

struct NcclRequest {
  World* control = nullptr;  ///< a world of the same ranks for host memory; must outlive the result
  int device = 0;            ///< of this host
  double train_seconds = 100;
};

/// The exported function. The communicators of its world take spans of the device's memory. Throws UsageError
/// if the GPU does not exist.
using NcclEntry = std::unique_ptr<World> (*)(const NcclRequest& request);
inline constexpr const char* kNcclEntryName = "stepforge_nccl_entry";

/// Loads the plug-in next to this library and makes its world, which owns the result of `make_control`.
/// Throws UsageError if the plug-in does not exist or cannot be loaded, or if there is no GPU.
std::unique_ptr<World> nccl_world(const std::function<std::unique_ptr<World>()>& make_control, int device,
                                  double train_seconds);

}  // namespace stepforge
