// SPDX-License-Identifier: Apache-2.0
// Writes the step program of one rank from the specification of a model: a base program, then passes over it
// (step/passes.h).
#pragma once

#include <functional>
#include <vector>

#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/options.h"
#include "stepforge/step/program.h"

namespace stepforge {

using Pass = std::function<void(StepProgram& program)>;

/// The blocks and units of the program have the indices of the model; its buffers begin with the persistent
/// ones.
///
/// Which buffers a kind of operation reads and allocates is listed in the table of step/operations.h. Of the
/// allocations in a row,
/// - graph is made only if keep_graph is set;
/// - bundle_gradient only if the block below runs a backward;
/// - whole_gradient only for a sharded or offloaded unit; reduce_wait is its last reader;
/// - gradients only by the first reduce_start of an offloaded unit (later ones add to the reloaded sum);
/// - parts of the state of an offloaded unit only as Operation::parts states.
/// Every buffer is freed by its last reader. So backward frees the graph and the output gradient of its block
/// and, since nothing below needs its input any more, the bundle of the block below. A graph holds what
/// autograd saved; it must not hold the output or the input of the block, which are buffers of their own.
/// Blocks below the lowest trainable unit run without a graph and have no backward.
///
/// The groups "fsdp", "dp_replicate" and "loss" exist if they have more than one rank. Persistent buffers
/// have the size of this rank's shard; gather slots, whole gradients and levels that of the whole unit,
/// padded as its partition needs (ShardLayout::gathered).
///
/// `layout` has a unit for each unit of the model. Throws UsageError if the options do not fit the model: no
/// micro-batch, nothing to train, unknown names.
///
/// `added` run after the passes of step/passes.h that write operations, and before those that derive needs and buffers.
StepProgram build_step(const ModelSpec& model, const RankLayout& layout, const StepOptions& options,
                       const std::vector<Pass>& added = {});

}  // namespace stepforge
