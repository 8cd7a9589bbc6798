// SPDX-License-Identifier: Apache-2.0
// A world over several hosts that uses shared memory within each host.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/shared_memory.h"

namespace stepforge {

/// Equal on two ranks only if they can share memory: identifies the running kernel and its folder of shared
/// memory (containers have their own).
std::string host_identity();

/// Creates the world that reaches all ranks; it calls `on_failure` once, from any thread, when it fails.
using WorldMaker = std::function<std::unique_ptr<World>(std::function<void(const std::string&)> on_failure)>;

/// Groups whose ranks are all on one host use its shared memory, others the world that `make_far` creates. The
/// ranks gather their `identity` to find those on the same host. `run_id`: of this start.
std::unique_ptr<World> hierarchical_world(const std::string& run_id, const std::string& identity,
                                          const WorldMaker& make_far, CommDeadlines deadlines);

}  // namespace stepforge
