// SPDX-License-Identifier: Apache-2.0
// Bytes and FLOPs of a list of calls, from the steps that run (call_program.h) and the formulas of the call table.
#pragma once

#include <string>
#include <vector>

#include "stepforge/modelspec/call_list.h"
#include "stepforge/modelspec/cost.h"

namespace stepforge {

/// `recomputed` names regions that backward runs again (call_passes.h).
BlockCost list_cost(const CallList& list, const CostContext& context,
                    const std::vector<std::string>& recomputed = {});

/// The list as the rules of value types (value_types.h) see it: a chain of calls in regions. Sizes are those of a region in a
/// block of tensor operations. `keeps_input`: the region saves its input; false if the block does.
std::vector<RegionSpec> regions_of(const CallList& list, bool keeps_input);

}  // namespace stepforge
