// SPDX-License-Identifier: Apache-2.0
// The exchange of rows with the ranks that hold the other experts, as collectives of the expert group.
#pragma once

#include "stepforge/nn/expert_exchange.h"
#include "stepforge/storage/group_communicators.h"

namespace stepforge {

/// Over the expert group of `groups`, on the compute lane; an empty function for degree 1. It throws PeerError. `groups`
/// must outlive it.
ExpertExchange expert_exchange(const GroupCommunicators& groups, const ExpertParallel& parallel);

}  // namespace stepforge
