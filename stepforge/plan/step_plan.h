// SPDX-License-Identifier: Apache-2.0
// Builds the step programs of a job, without tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/plan/job.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/memory.h"
#include "stepforge/step/options.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// The programs of one pipeline, by its ranks, and the proof for the programs of all ranks. Without a
/// pipeline there is one program.
struct ProvedStep {
  std::vector<StepProgram> stages;
  int member = 0;  ///< the rank for which it was planned
  SymmetryProof proof;

  const StepProgram& program() const { return element(stages, member); }
  /// The rank of the pipeline that needs most memory.
  int largest() const;
};

/// What the configuration recomputes in a backward.
RecomputePolicy plan_recomputation(const ActivationCheckpointConfig& activation_checkpoint);

/// The training program of the rank, not checked.
StepProgram write_train_step(const Job& job);

/// The same after checking the programs of all ranks and the types of values inside blocks
/// (modelspec/value_types.h); with the proof, and without. Throws Error if the model is not divided as the mesh is.
ProvedStep prove_train_step(const Job& job);
StepProgram plan_train_step(const Job& job);

/// The memory of the rank with the highest peak in the pipeline, if all rows of tokens come to the experts of one rank. The
/// memory of the programs is for even loads.
MemoryAccount plan_largest_memory(const Job& job);

/// The forward-only program of validation and `eval`, for micro-batches of the same shape as in training.
/// Checks the programs of all ranks. The program does not reduce losses over ranks.
StepProgram plan_evaluation(const Job& job);

/// The checked forward-only program that generation runs once per token, with a KV cache of `cache_tokens`
/// positions.
StepProgram plan_generation(DType compute, const ModelSpec& model, int64_t cache_tokens);

/// The same for samples during training: all ranks run it on the same tokens and gather units as needed.
/// Checks the programs of all ranks.
StepProgram plan_samples(const Job& job, int64_t cache_tokens);

}  // namespace stepforge
