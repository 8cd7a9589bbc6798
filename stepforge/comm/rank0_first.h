// SPDX-License-Identifier: Apache-2.0
// Work that rank 0 does first, such as filling a cache, while the other ranks wait as long as it makes
// progress.
#pragma once

#include <functional>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// Reports progress. Any thread may call it, at any rate.
using ReportProgress = std::function<void()>;

/// Runs `action` on rank 0 of the group, then on all others at the same time, which find the files that rank
/// 0 wrote. The others wait for any length of time, but throw PeerError if rank 0 reports no progress within
/// the deadline of a collective. `all` may be null: one rank.
void rank0_first(Communicator* all, const std::function<void(const ReportProgress& report)>& action);

}  // namespace stepforge
