// SPDX-License-Identifier: Apache-2.0
// From a pipeline schedule to operations: the computations of the blocks, and the messages between stages.
#pragma once

#include "stepforge/layout/rank_layout.h"
#include "stepforge/step/options.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Appends the operations of this rank's actions. `program` has units, blocks, values and groups. The head runs with
/// the forward of the last stage, unless the schedule lists its loss. A message is sent right after the computation
/// that makes it, on the lane of its neighbour and direction, and its receipt is listed one action before it is
/// needed, in the sender's order. Throws UsageError if the schedule does not fit the pipeline or the program.
void lower_schedule(StepProgram& program, const RankLayout& layout, const PipelineOptions& pipeline);

/// The same without backward passes: `program` evaluates or generates, micro-batch by micro-batch. The ranks have the
/// stages that the schedule gives them.
void lower_forward(StepProgram& program, const RankLayout& layout, const PipelineOptions& pipeline);

}  // namespace stepforge
