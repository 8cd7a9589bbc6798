// SPDX-License-Identifier: Apache-2.0
// What context parallelism adds to the cost of attention.
#pragma once

#include "stepforge/catalog/layers.h"

namespace stepforge {

/// Adds to the last operation of `region`, attention over whole rows, what it needs if the tokens of each row
/// are divided over more than one rank, and to the region what it exchanges.
void exchange_context(RegionCost& region, const AttentionDims& dims, const ContextParallel& context);

}  // namespace stepforge
