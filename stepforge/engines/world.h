// SPDX-License-Identifier: Apache-2.0
// The choice of a job's engine.
#pragma once

#include <memory>

#include "stepforge/comm/communicator.h"
#include "stepforge/config/config.h"
#include "stepforge/launch/rank_environment.h"

namespace stepforge {

/// The world of this process's rank. By [comm] it uses
/// - `auto`: shared memory among the ranks of one host; Gloo over TCP among several hosts, with shared memory
///   for groups within one host;
/// - `nccl`: the same, for host memory; the trainer adds NCCL for the memory of GPUs (comm/device_engine.h), whose communicators are
///   made through this world;
/// - otherwise the selected engine for all groups.
/// A single rank uses no engine. Waits until all ranks have joined.
///
/// Throws UsageError if the ranks cannot be connected that way, and PeerError naming ranks that do not join
/// before the deadline.
std::unique_ptr<World> make_world(const RankEnvironment& environment, const CommConfig& comm);

}  // namespace stepforge
