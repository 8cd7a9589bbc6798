// SPDX-License-Identifier: Apache-2.0
// Compares the lists of calls of all ranks once, before the first step: engines that enqueue do not compare each call.
#pragma once

#include "stepforge/step/program.h"
#include "stepforge/storage/group_communicators.h"

namespace stepforge {

/// Throws Error on every rank of a group whose members would call different collectives in `program`, or send messages that their
/// neighbour does not expect: names both ranks and their first calls that differ. A collective of all ranks.
void require_equal_calls(const StepProgram& program, const GroupCommunicators& groups);

}  // namespace stepforge
