// SPDX-License-Identifier: Apache-2.0
// What a step program sends over its groups: number and bytes of collectives.
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

/// All collectives of one kind over one group.
struct CollectiveTotal {
  int group = 0;  ///< index into StepProgram::groups
  OpKind kind = OpKind::gather_start;
  int64_t count = 0;
  int64_t bytes = 0;  ///< of all whole messages: what is gathered, or what is summed
};

/// The collectives of one step, ordered by group, then by first appearance.
std::vector<CollectiveTotal> collective_totals(const StepProgram& program);

}  // namespace stepforge
