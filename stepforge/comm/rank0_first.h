// SPDX-License-Identifier: Apache-2.0
// Work that rank 0 does for all, such as filling a cache, while the other ranks wait as long as it advances.
#pragma once

#include <functional>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// Reports that the work advances. Any thread may call it, as often as it likes.
using ReportProgress = std::function<void()>;

/// Runs `action` on rank 0 of the group, then on all others at the same time: they find the files that rank 0
/// left. The others wait however long the work takes, but throw PeerError if rank 0 reports no progress for as
/// long as a collective may take. `all` may be null: one rank.
void rank0_first(Communicator* all, const std::function<void(const ReportProgress& report)>& action);

}  // namespace stepforge
