// SPDX-License-Identifier: Apache-2.0
// What context parallelism adds to the cost of attention.
#pragma once

#include "stepforge/catalog/layers.h"

namespace stepforge {

/// `dims` as attention sees them where neighbours exchange tokens for heads, per token of this rank: a key-value
/// head goes to every one that needs it.
AttentionDims joined_dims(AttentionDims dims, const ContextParallel& context);

/// Adds to the last operation of `region`, attention of joined_dims() over whole rows, what it needs if the tokens
/// of each row are divided over more than one rank, around it the exchanges of tokens for heads, and to the region
/// what it exchanges.
void exchange_context(RegionSpec& region, const AttentionDims& dims, const ContextParallel& context);

}  // namespace stepforge
