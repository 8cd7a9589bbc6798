// SPDX-License-Identifier: Apache-2.0
// Bytes and FLOPs of a list of calls, from the steps that run (call_program.h) and the formulas of its calls (call_kind.h).
#pragma once

#include <string>
#include <vector>

#include "stepforge/modelspec/call_list.h"
#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/cost.h"

namespace stepforge {

/// FLOPs of attention in forward per token whose document has `length` tokens, without the causal mask; 0 of other calls.
double flops_of_keys(const CallInfo& info, int64_t length);

/// FLOPs of a call in forward.
double call_flops(const CallInfo& info, const CostContext& context);

/// `recomputed` names regions and calls that backward runs again (call_passes.h).
BlockCost list_cost(const CallList& list, const CostContext& context,
                    const std::vector<std::string>& recomputed = {});

}  // namespace stepforge
