// SPDX-License-Identifier: Apache-2.0
// The passes that build_step() runs, in this order. Each is a pure function of a program.
#pragma once

#include <vector>

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/options.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Load, forwards, loss and backwards of every micro-batch, then norm, check and updates. With several ranks,
/// labels are counted first and the loss is reduced before the norm. The program has no buffers yet.
StepProgram write_base_program(const ModelSpec& model, const RankLayout& layout, const StepOptions& options);

/// For each block, whether `policy` keeps only its input until its backward. Throws UsageError for a policy that does
/// not fit the model.
std::vector<bool> recomputed_blocks(const ModelSpec& model, const RecomputePolicy& policy);

/// For each block, the regions and calls inside it that `policy` makes again in backward ("mlp", "mlp.swiglu"). `context`: of
/// one micro-batch. Throws likewise.
std::vector<std::vector<std::string>> recomputed_parts(const ModelSpec& model, const RecomputePolicy& policy,
                                                       const CostContext& context);

/// Blocks that are recomputed as a whole run forward without a graph, and again before their backward.
void recompute_pass(StepProgram& program, const ModelSpec& model, const RecomputePolicy& policy,
                    const CostContext& context);

/// The gradient of each micro-batch is a leaf of a fixed binary tree: leaves 2k and 2k + 1 are added first, then pairs
/// of pairs. If their number is not a power of two, the complete subtrees of its set bits are added up, the smallest
/// first. Whatever the order in which a schedule completes leaves, a sum is stashed until its sibling is there, so all
/// orders give the same bits. In the order of their numbers this is a binary counter: log2 stashes at most. If two
/// blocks use a unit, their contributions are added first; if they are on two ranks, all leaves are stashed until they
/// are summed over the copies, at the end. Throws UsageError if more blocks use it.
void ordered_pass(StepProgram& program);

/// Sharded units: a whole gradient is started before the first contribution and reduced after the last one of
/// the step, or of each micro-batch. Replicated units: the sum over the replicas follows, of the shard or of
/// the gradient in place. All reductions end before the loss is reduced and the norm is computed.
void reduce_pass(StepProgram& program, const ReducePolicy& policy);

/// Units that are not resident are gathered before use and released after it.
void gather_pass(StepProgram& program, const GatherPolicy& policy);

/// The state of offloaded units is copied to the device for gathers, for reductions that add to it and for
/// updates. Changes are copied back: gradients when they are reduced (the norm is computed on the host),
/// weights and optimizer state after the update.
void offload_pass(StepProgram& program, const OffloadPolicy& policy);

/// An operation needs those before it on other lanes whose effects on a resource conflict with its own, unless other
/// needs order them already. Earlier passes write only needs that are a policy, like how far gathers run ahead.
void needs_pass(StepProgram& program);

/// Adds buffers, workspaces and costs to the operations, and frees each buffer after its last reader.
void buffer_pass(StepProgram& program, const ModelSpec& model, const RankLayout& layout,
                 const StepOptions& options);

/// Lets the last operation, in list order, that allocates or reads a buffer free it. Persistent buffers stay.
void free_after_last_use(StepProgram& program);

struct Insertion {
  std::size_t before = 0;  ///< index of the operation to insert before; the size of the list for the end
  Operation operation;
};

/// Inserts operations and renumbers `needs` of the others. Those before the same operation keep their order.
void insert_operations(std::vector<Operation>& operations, std::vector<Insertion> insertions);

}  // namespace stepforge
