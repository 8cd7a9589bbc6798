// SPDX-License-Identifier: Apache-2.0
// Builds the model's specification and the step programs of a configuration, without tensors. The trainer and
// `stepforge plan` both use these functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/data/batch_layout.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/context_parallel.h"
#include "stepforge/modelspec/expert_parallel.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/plan/pipeline_plan.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/memory.h"
#include "stepforge/step/options.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// The rows of a step that data rank `data_rank` of `data_ranks` reads. In ordered mode a micro-batch is one
/// row, a leaf of the summation tree. A pipeline divides the rows of training.local_batch_size into micro-batches.
///
/// Throws UsageError if the rows of a step do not divide into whole micro-batches on every rank. In ordered
/// mode, also if the rows of a rank are not a subtree of the summation tree: with several ranks, both their
/// number and the rows of each must be powers of two.
BatchLayout plan_batch(const Config& config, int data_ranks = 1, int data_rank = 0,
                       const ContextPart& part = {});

/// The same for the rank of `layout`, which reads its part of the rows with context parallelism. Throws
/// UsageError also if training.seq_len cannot be divided.
BatchLayout plan_batch(const Config& config, const RankLayout& layout);

/// The number of ranks that read different rows. Throws UsageError if the degrees of config.parallelism do
/// not fit the world size.
int plan_data_ranks(const Config& config, int world_size);

/// How the tokens of each row are divided over ranks.
ContextParallel plan_context(const Config& config);

/// This rank's part of divided matrices. Throws UsageError as plan_data_ranks() does.
TensorParallel plan_tensor(const Config& config, RankId rank);

/// This rank's experts of each layer. Throws UsageError as plan_data_ranks() does.
ExpertParallel plan_experts(const Config& config, RankId rank);

/// The specification of config.model. Throws UsageError if model.vocab_size is 0 and no tokenizer gives it.
ModelSpec plan_model(const Config& config);

/// All blocks of the model, with this rank's parts of tensors that are divided. Throws UsageError as plan_model() and
/// plan_data_ranks() do, or if a degree does not fit the model. With `all_rows` its costs assume that
/// as many rows of tokens as possible come to this rank's experts, instead of even loads.
ModelSpec plan_divided_model(const Config& config, RankId rank, bool all_rows = false);

/// This rank's part of the model: its parts of divided tensors, and in a pipeline the blocks of its stages. The
/// functions below take it as `model`, and the plan of the pipeline if the job has one.
ModelSpec plan_rank_model(const PipelinePlan& pipeline, RankId rank);

/// What a rank holds of the model. Throws UsageError as plan_data_ranks() does.
RankLayout plan_layout(const Config& config, const ModelSpec& model, RankId rank = {},
                       const PipelinePlan& pipeline = {});

/// The programs of one pipeline, by its ranks, and the proof for the programs of all ranks. Without a
/// pipeline there is one program.
struct ProvedStep {
  std::vector<StepProgram> stages;
  int member = 0;  ///< the rank for which it was planned
  SymmetryProof proof;

  const StepProgram& program() const { return element(stages, member); }
  /// The program of the rank that needs most memory.
  const StepProgram& largest_program() const;
};

/// The training program of the rank of `layout`, not checked.
StepProgram write_train_step(const Config& config, const ModelSpec& model, const RankLayout& layout,
                             const PipelinePlan& pipeline = {});

/// What the configuration recomputes in a backward.
RecomputePolicy plan_recomputation(const ActivationCheckpointConfig& activation_checkpoint);

/// The same after checking the programs of all ranks and the types of values inside blocks
/// (modelspec/value_types.h); with the proof, and without. Throws Error if `model` is not divided as the mesh is.
ProvedStep prove_train_step(const Config& config, const ModelSpec& model, const RankLayout& layout,
                            const PipelinePlan& pipeline = {});
StepProgram plan_train_step(const Config& config, const ModelSpec& model, const RankLayout& layout,
                            const PipelinePlan& pipeline = {});

/// The memory of the rank with the highest peak in the pipeline, if all rows of tokens come to the experts of one rank. The
/// memory of the programs is for even loads.
MemoryAccount plan_largest_memory(const Config& config, RankId rank);

/// The forward-only program of validation and `eval`, for micro-batches of the same shape as in training.
/// Checks the programs of all ranks. The program does not reduce losses over ranks.
StepProgram plan_evaluation(const Config& config, const ModelSpec& model, const RankLayout& layout,
                            const PipelinePlan& pipeline = {});

/// The checked forward-only program that generation runs once per token, with a KV cache of `cache_tokens`
/// positions.
StepProgram plan_generation(DType compute, const ModelSpec& model, int64_t cache_tokens);

/// The same for samples during training: all ranks run it on the same tokens and gather units as needed.
/// Checks the programs of all ranks.
StepProgram plan_samples(const Config& config, const ModelSpec& model, int64_t cache_tokens,
                         const RankLayout& layout, const PipelinePlan& pipeline = {});

}  // namespace stepforge
