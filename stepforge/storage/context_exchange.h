// SPDX-License-Identifier: Apache-2.0
// The exchanges of attention with the ranks that hold the other tokens of the same rows, as collectives of the
// context group.
#pragma once

#include "stepforge/nn/context_exchange.h"
#include "stepforge/storage/group_communicators.h"

namespace stepforge {

/// Over the context group of `groups`, on the compute lane, with ring also on the peer lane; empty functions if
/// it has one rank. The functions throw PeerError. `groups` must outlive them.
ContextExchange context_exchange(const GroupCommunicators& groups, ContextMethod method);

}  // namespace stepforge
