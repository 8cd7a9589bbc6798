// SPDX-License-Identifier: Apache-2.0
// Messages between the ranks of a group that are on their way while the rank computes.
#pragma once

#include "stepforge/kernels/pass_tensors.h"
#include "stepforge/storage/group_communicators.h"

namespace stepforge {

/// For a group of several ranks, on a lane of its own: Lane::peer. `groups` must outlive it.
PassTensors pass_tensors(const GroupCommunicators& groups, int group);

}  // namespace stepforge
