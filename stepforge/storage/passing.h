// SPDX-License-Identifier: Apache-2.0
// Messages between the ranks of a group that are on their way while the rank computes.
#pragma once

#include <cstdint>
#include <functional>
#include <future>

#include <ATen/core/Tensor.h>

#include "stepforge/storage/group_communicators.h"

namespace stepforge {

/// Sends `outgoing` to the rank `distance` places after this one in the group while `incoming` is received from the
/// one as far before. Returns at once; the future is ready, or throws PeerError, when both have happened. Until
/// then both tensors must live. Calls run one after another, in the same order on all ranks.
using PassTensors = std::function<std::shared_future<void>(const at::Tensor& outgoing,
                                                           const at::Tensor& incoming, int64_t distance)>;

/// For a group of several ranks, on a lane of its own: Lane::peer. `groups` must outlive it.
PassTensors pass_tensors(const GroupCommunicators& groups, int group);

}  // namespace stepforge
