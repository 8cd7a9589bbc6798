// SPDX-License-Identifier: Apache-2.0
// The number and bytes of the collectives of a step program.
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
  int64_t bytes = 0;  ///< of the whole messages: all shards of what is gathered or summed
};

/// The collectives of one step, ordered by group, then by first appearance.
std::vector<CollectiveTotal> collective_totals(const StepProgram& program);

}  // namespace stepforge
