// SPDX-License-Identifier: Apache-2.0
// Writes the step program of one rank from the specification of a model: a base list, then small passes over
// it (step/passes.h).
#pragma once

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/options.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// The blocks and units of the program have the indices of the model; its buffers begin with the persistent
/// ones.
///
/// Which buffers an operation reads and allocates is a column of the table in step/operations.h. Of what a
/// row makes,
///   graph            is made only if keep_graph is set;
///   bundle_gradient  only if the block below runs a backward;
///   whole_gradient   only for a sharded or offloaded unit, of which reduce_wait is then the last reader;
///   gradients        only by the first reduce_start of an offloaded unit (others add to what was reloaded);
///   parts of the state of an offloaded unit only as Operation::parts says.
/// Every buffer is freed by its last reader: so backward frees the graph and the gradient of the result of
/// its block and, since nothing below needs its input any more, the bundle of the block below. A graph is
/// what autograd saved; it must not hold the output or input of the block, which are buffers of their own.
/// Blocks below the lowest trainable unit run without graph and have no backward.
///
/// Groups "dp_shard", "dp_replicate" and "loss" exist if they have more than one rank. Persistent buffers are
/// those of this rank's shard; gather slots, whole gradients and levels are those of the whole unit, padded
/// as the partition needs it (ShardLayout::gathered).
///
/// Throws UsageError if the options do not fit the model: no micro-batch, nothing to train, unknown names.
StepProgram build_step(const ModelSpec& model, const StepOptions& options);

}  // namespace stepforge
