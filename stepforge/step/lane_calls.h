// SPDX-License-Identifier: Apache-2.0
// What a program calls on one communicator: the ranks of a group must have equal lists.
#pragma once

#include <string>
#include <vector>

#include "stepforge/step/collectives.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// A line for each collective of the group on this lane, in order: "gather layers.3 m0". For messages of a pipeline, the
/// same on both ends: "m0 tag 2, 4096 bytes".
std::vector<std::string> lane_calls(const StepProgram& program, const GroupLane& lane);

}  // namespace stepforge
