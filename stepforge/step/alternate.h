// SPDX-License-Identifier: Apache-2.0
// Two micro-batches that take turns, so that one computes while rows of the other are on their way to experts of other ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "stepforge/schedule/schedule.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// The place of the action of another micro-batch that may take turns with action k; k if there is none. Without stages
/// that is the next forward or backward, of the same kind. In a pipeline a backward, with the weight gradients after it,
/// has the next forward: two forwards would both be late for the next stage, and a forward before a backward may be what
/// the next stage needs for that backward.
std::size_t turn_partner(const std::vector<Action>& actions, std::size_t k, bool in_pipeline);

/// Puts the operations [begin, middle) and [middle, size) of `program`, of two micro-batches, in turn: each list is cut before
/// the computations that wait for an exchange of its own. Returns the new index of each of them. `program` has blocks and
/// values, and of operations computations, exchanges and messages.
std::vector<int> alternate_exchanges(StepProgram& program, int begin, int middle);

}  // namespace stepforge
