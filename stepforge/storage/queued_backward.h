// SPDX-License-Identifier: Apache-2.0
// Backward of a block in two halves: first the gradients of its inputs, later those of its weights.
#pragma once

#include <functional>
#include <span>

#include "stepforge/nn/gradient_queue.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// Runs `backward`, which writes gradients of `units` only, and adds to `queue` what it and the end of a
/// backward (UnitStore::finish_gradient) would write. No gradient changes, and none needs memory, until
/// queue.run(), which completes the backward.
void queued_backward(ModelStore& store, std::span<const int> units, GradientQueue& queue,
                     const std::function<void()>& backward);

}  // namespace stepforge
