// SPDX-License-Identifier: Apache-2.0
// The exchanges of attention with the ranks that hold the other tokens of the same rows, as collectives of the
// context group.
#pragma once

#include "stepforge/nn/context_exchange.h"
#include "stepforge/storage/group_communicators.h"

namespace stepforge {

/// The exchanges over the groups for heads and for keys of `groups`, on the compute lane; a ring also uses the peer lane.
/// A group of one rank gets empty functions. The functions throw PeerError. `groups` must outlive them.
ContextExchange context_exchange(const GroupCommunicators& groups, const ContextParallel& parallel);

}  // namespace stepforge
