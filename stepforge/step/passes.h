// The passes that build_step runs, in this order. Each is a pure function from a program to a program.
#pragma once

#include <vector>

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/build.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Load, forwards, loss, backwards of every micro-batch; then norm, check and updates; with several ranks,
/// labels are counted first and the loss is reduced before the norm. No buffers yet.
StepProgram write_base_program(const ModelSpec& model, const StepOptions& options);

/// The chosen blocks run forward without a graph and again before their backward.
void recompute_pass(StepProgram& program, const ModelSpec& model, const RecomputePolicy& policy);

/// Each micro-batch's gradient is a leaf of a fixed binary tree, summed like a binary counter: before leaf g
/// the tree holds one finished subtree of 2^j leaves for each set bit j of g. After leaf g the subtrees of
/// its trailing 1 bits are added, lowest first, and the sum is stashed at the level of its lowest 0 bit.
/// After the last leaf all remaining subtrees are added, lowest first. Units that are not sharded are all
/// stashed and added at the end of the leaf, others as soon as the leaf has their last contribution.
void ordered_pass(StepProgram& program);

/// Sharded units: a whole gradient is started before the first contribution and reduced after the last (of
/// the step, or of each micro-batch). Replicated units: then, or on the gradient itself, the sum over the
/// replicas. Everything has ended before the loss is reduced and the norm measured. Other units: as they
/// were.
void reduce_pass(StepProgram& program, const ReducePolicy& policy);

/// Units that are not resident are gathered before use and released after it.
void gather_pass(StepProgram& program, const GatherPolicy& policy);

/// The state of offloaded units is brought to the device for gathers, for reductions that add to it and for
/// updates, and what has changed is brought back: gradients when they are reduced, for the norm is measured
/// on the host, weights and optimizer after the update.
void offload_pass(StepProgram& program, const OffloadPolicy& policy);

/// Gives every operation its buffers and workspace, and frees each buffer after its last reader.
void buffer_pass(StepProgram& program, const ModelSpec& model, const StepOptions& options);

/// Each buffer that is not persistent is freed by the last operation, in list order, that allocates or reads
/// it.
void free_after_last_use(StepProgram& program);

/// `operation` to be put before the one at `before` (or at the end, if that is the size of the list).
struct Insertion {
  std::size_t before = 0;
  Operation operation;
};

/// Inserts all, those for one place in the order given, and renumbers `needs`. `before` must not decrease.
void insert_operations(std::vector<Operation>& operations, const std::vector<Insertion>& insertions);

/// Whether the operation computes with its block's units.
bool uses_units(OpKind kind);

/// ... and reads their weights, which must be gathered then.
bool reads_weights(const StepProgram& program, const Operation& operation);

/// Whether the operation adds to the gradient of its block's trainable units.
bool contributes(OpKind kind);

/// Whether the operation adds to the gradient of `unit`, if that is trainable.
bool contributes_to(const StepProgram& program, const Operation& operation, int unit);

}  // namespace stepforge
