// SPDX-License-Identifier: Apache-2.0
// Messages between ranks beside compute, as operations see them: a function that comes from outside, so that model code
// knows no ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <future>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// Starts to send `outgoing` to the rank `distance` places after this one in a group, around its end, and to receive
/// `incoming` from the one as far before. The future is ready, or throws PeerError, when both have happened; until then
/// both tensors, which are contiguous, must live. Calls run one after another, in the same order on all ranks.
using PassTensors = std::function<std::shared_future<void>(const at::Tensor& outgoing,
                                                           const at::Tensor& incoming, int64_t distance)>;

}  // namespace stepforge
