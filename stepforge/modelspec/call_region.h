// SPDX-License-Identifier: Apache-2.0
// A list of calls as a region (cost.h): what the rules of value types read, and sizes for blocks that have regions of tensor
// operations beside it.
#pragma once

#include "stepforge/modelspec/cost.h"

namespace stepforge {

/// The region of a list, all of whose calls are in one, without sizes.
RegionSpec region_of(CallList list, CallList generation);

/// Adds the sizes of the calls, for block_cost() of a block with regions of tensor operations. `keeps_input`: the region
/// saves its input; false if the block does.
void add_sizes(RegionSpec& region, bool keeps_input);

}  // namespace stepforge
