// SPDX-License-Identifier: Apache-2.0
// A world over several hosts that uses shared memory within each host.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "stepforge/comm/communicator.h"
#include "stepforge/comm/shared_memory.h"

namespace stepforge {

/// Equal on two ranks only if they can share memory: identifies the running kernel and its /dev/shm
/// (containers have their own).
std::string host_identity();

/// Creates the world that reaches all ranks. The world must call `on_failure` once, from any thread, when it
/// fails.
using WorldMaker = std::function<std::unique_ptr<World>(std::function<void(const std::string&)> on_failure)>;

/// Groups whose ranks are all on this host use shared memory, others the world that `make_global` creates.
/// The ranks gather their `identity` to find those on the same host. `run_id` must be the same on all ranks
/// and different for each start.
std::unique_ptr<World> hierarchical_world(const std::string& run_id, const std::string& identity,
                                          const WorldMaker& make_global, CommDeadlines deadlines);

}  // namespace stepforge
