// SPDX-License-Identifier: Apache-2.0
// The collectives of a step program: their groups and lanes, their number and bytes.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "stepforge/step/program.h"

namespace stepforge {

/// The collectives of a group on one lane, or the messages to or from one neighbour in it, which have a communicator
/// of their own.
struct GroupLane {
  int group = -1;  ///< index into StepProgram::groups
  Lane lane = Lane::compute;

  auto operator<=>(const GroupLane&) const = default;
};

/// The pairs that a program uses, ascending: the same on all ranks that run the same program.
std::vector<GroupLane> group_lanes(const StepProgram& program);

/// All collectives of one kind over one group, or all messages that a stage sends in its pipeline.
struct CollectiveTotal {
  int group = 0;  ///< index into StepProgram::groups
  OpKind kind = OpKind::gather_start;
  int64_t count = 0;
  int64_t bytes = 0;  ///< as a whole: all shards of what is gathered or summed
};

/// The collectives of one step, ordered by group, then by first appearance.
std::vector<CollectiveTotal> collective_totals(const StepProgram& program);

}  // namespace stepforge
