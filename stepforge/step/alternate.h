// SPDX-License-Identifier: Apache-2.0
// Two micro-batches that take turns, so that one computes while rows of the other are on their way to experts of other ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "stepforge/schedule/schedule.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// The index of the action of another micro-batch that may take turns with action k; k if there is none. Without stages
/// it is the next action of the same kind, forward or backward. In a pipeline a backward, with the weight gradients after
/// it, takes turns with the next forward: two forwards would both be late for the next stage, and that stage may need a
/// forward listed before a backward in order to compute this backward's input.
std::size_t turn_partner(const std::vector<Action>& actions, std::size_t k, bool in_pipeline);

/// Interleaves the operations [begin, middle) and [middle, size) of `program`, which belong to two micro-batches: each list
/// is cut before the computations that wait for one of its exchanges. Returns the new index of each operation. `program` has
/// blocks and values; its operations are computations, exchanges and messages.
std::vector<int> alternate_exchanges(StepProgram& program, int begin, int middle);

}  // namespace stepforge
