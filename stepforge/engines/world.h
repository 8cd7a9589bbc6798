// SPDX-License-Identifier: Apache-2.0
// Which engine carries a job's traffic.
#pragma once

#include <memory>

#include "stepforge/comm/communicator.h"
#include "stepforge/config/config.h"
#include "stepforge/launch/rank_environment.h"

namespace stepforge {

/// The world of this process's rank, as [comm] asks: one rank alone; shared memory among the ranks of one
/// host; Gloo over TCP among several hosts, with shared memory for groups within one; or one engine for all.
/// Waits until all ranks are there.
///
/// Throws UsageError if the ranks cannot be connected that way, PeerError naming those that do not come
/// before the deadline.
std::unique_ptr<World> make_world(const RankEnvironment& environment, const CommConfig& comm);

}  // namespace stepforge
