// SPDX-License-Identifier: Apache-2.0
// Gradient clipping for modules under fully_shard.
#pragma once

#include "stepforge/fsdp/fully_shard.h"

namespace stepforge {

/// Scales the gradients of all parameters so that their norm is at most `max_norm`. Returns the norm before
/// clipping, the same bits on every rank. Each element counts once, whether sharded or replicated; for
/// sliced_params the elements of all slices count. `norm_type`: 1, 2, 3 or infinity. A collective of the mesh; waits
/// for reductions under way. Throws UsageError for another type or a negative max_norm. With
/// `error_if_nonfinite`, throws Error if the norm is not finite and leaves the gradients unchanged.
double clip_grad_norm(const ShardedModule& module, double max_norm, double norm_type = 2.0,
                      bool error_if_nonfinite = false);

}  // namespace stepforge
