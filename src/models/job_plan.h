// From a configuration to what will run: the model's specification and its step programs. No tensors: the
// trainer and `stepforge plan` see the same lists.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "spec/model_spec.h"
#include "step/build.h"
#include "step/program.h"

namespace stepforge {

/// How the rows of a step are cut.
struct BatchPlan {
  int64_t seq_len = 0;
  int64_t rows_per_step = 0;         ///< global batch size
  int64_t rows_per_micro_batch = 0;  ///< 1 in ordered mode: a row is a leaf of the summation tree
  int micro_batches = 0;

  int64_t tokens_per_step() const { return rows_per_step * seq_len; }
  int64_t tokens_per_micro_batch() const { return rows_per_micro_batch * seq_len; }
};

BatchPlan plan_batch(const TrainingConfig& training);

/// The compute dtype of precision.compute.
DType compute_dtype(const PrecisionConfig& precision);

/// The specification of config.model. Throws UsageError if model.vocab_size is open and no tokenizer gives
/// it.
ModelSpec plan_model(const Config& config);

/// The checked training program of one rank.
StepProgram plan_train_step(const Config& config, const ModelSpec& model);

/// The checked forward-only program of validation and `eval`, for micro-batches of the training's shape.
StepProgram plan_evaluation(const Config& config, const ModelSpec& model);

/// The checked forward-only program that generation runs once per token: `cache_tokens` positions of KV
/// cache.
StepProgram plan_generation(DType compute, const ModelSpec& model, int64_t cache_tokens);

}  // namespace stepforge
