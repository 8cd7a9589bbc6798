// SPDX-License-Identifier: Apache-2.0
// From a configuration to what will run: the model's specification and its step programs. No tensors: the
// trainer and `stepforge plan` see the same lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/comm/parallel_dims.h"
#include "stepforge/config/config.h"
#include "stepforge/data/batch_layout.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/options.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// How data rank `data_rank` of `data_ranks` reads the rows of a step; in ordered mode a micro-batch is one row, a
/// leaf of the summation tree. Throws UsageError if the ranks cannot have whole micro-batches, or, in ordered
/// mode, if the sums of their rows are not subtrees of the one over all rows: over several ranks, both their
/// number and the rows of each must be powers of two.
BatchLayout plan_batch(const TrainingConfig& training, int data_ranks = 1, int data_rank = 0);

/// The groups of a rank by the degrees in config.parallelism. The rank reads the rows of its position in
/// loss_ranks. Throws UsageError if the degrees do not fit the world.
DataParallel data_parallel_of(const Config& config, RankId place);

/// How units are partitioned over the ranks of a shard group, parallelism.fsdp_partition.
Partition partition_of(const ParallelismConfig& parallelism);

/// The specification of config.model. Throws UsageError if model.vocab_size is 0 and no tokenizer gives it.
ModelSpec plan_model(const Config& config);

/// The program of one rank, and what was proved of the programs of all ranks.
struct ProvedStep {
  StepProgram program;
  SymmetryProof proof;
};

/// The training program of one rank, not checked.
StepProgram write_train_step(const Config& config, const ModelSpec& model, RankId place);

/// The training program of one rank. The programs of all ranks are checked.
ProvedStep prove_train_step(const Config& config, const ModelSpec& model, RankId place = {});
StepProgram plan_train_step(const Config& config, const ModelSpec& model, RankId place = {});

/// The forward-only program of validation and `eval`, for micro-batches of the training's shape. The
/// programs of all ranks are checked. Losses are not reduced in it.
StepProgram plan_evaluation(const Config& config, const ModelSpec& model, RankId place = {});

/// The checked forward-only program that generation runs once per token: `cache_tokens` positions of KV
/// cache.
StepProgram plan_generation(DType compute, const ModelSpec& model, int64_t cache_tokens);

/// The same for samples during training: every rank runs it on the same tokens, gathering units as it goes.
/// The programs of all ranks are checked.
StepProgram plan_samples(const Config& config, const ModelSpec& model, int64_t cache_tokens, RankId place);

}  // namespace stepforge
