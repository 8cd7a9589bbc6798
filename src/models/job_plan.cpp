#include "models/job_plan.h"

#include <array>
#include <span>

#include "base/error.h"
#include "base/format.h"
#include "base/threads.h"
#include "models/families.h"
#include "step/checker.h"

namespace stepforge {

namespace {

RecomputePolicy recompute_policy(const ActivationCheckpointConfig& activation_checkpoint) {
  using Mode = RecomputePolicy::Mode;
  RecomputePolicy policy;
  const std::string& mode = activation_checkpoint.mode;
  policy.mode = mode == "full"       ? Mode::full
                : mode == "every_n"  ? Mode::every_n
                : mode == "blocks"   ? Mode::blocks
                : mode == "segments" ? Mode::segments
                                     : Mode::none;
  policy.n = static_cast<int>(activation_checkpoint.every_n);
  for (const int64_t layer : activation_checkpoint.blocks)
    policy.blocks.push_back(format("layers.{}", layer));
  policy.segments = activation_checkpoint.segments;
  return policy;
}

StepProgram checked(StepProgram program) {
  check_programs(std::span(&program, 1));
  return program;
}

}  // namespace

BatchPlan plan_batch(const TrainingConfig& training) {
  BatchPlan batch;
  batch.seq_len = training.seq_len;
  batch.rows_per_step =
      training.global_batch_size > 0 ? training.global_batch_size : training.local_batch_size;
  batch.rows_per_micro_batch = training.reduction == "ordered" ? 1 : training.local_batch_size;
  if (batch.rows_per_step % batch.rows_per_micro_batch != 0) {
    throw UsageError(
        format("training.global_batch_size = {} is no multiple of training.local_batch_size = {}",
               batch.rows_per_step, batch.rows_per_micro_batch));
  }
  batch.micro_batches = static_cast<int>(batch.rows_per_step / batch.rows_per_micro_batch);
  return batch;
}

DType compute_dtype(const PrecisionConfig& precision) {
  return precision.compute == "bf16" ? DType::bf16 : DType::f32;
}

ModelSpec plan_model(const Config& config) {
  return model_spec(config.model, config.training.loss_chunk);
}

namespace {

StepOptions common_options(const Config& config, ProgramKind kind) {
  const BatchPlan batch = plan_batch(config.training);
  StepOptions options;
  options.kind = kind;
  const int64_t threads = config.training.threads > 0 ? config.training.threads : hardware_threads();
  options.cost = {batch.tokens_per_micro_batch(), batch.seq_len, compute_dtype(config.precision), threads};
  options.gather.dtype = options.cost.compute;
  return options;
}

}  // namespace

StepProgram plan_train_step(const Config& config, const ModelSpec& model) {
  StepOptions options = common_options(config, ProgramKind::train);
  options.micro_batches = plan_batch(config.training).micro_batches;
  options.ordered = config.training.reduction == "ordered";
  options.recompute = recompute_policy(config.activation_checkpoint);
  return checked(build_step(model, options));
}

StepProgram plan_evaluation(const Config& config, const ModelSpec& model) {
  return checked(build_step(model, common_options(config, ProgramKind::evaluate)));
}

StepProgram plan_generation(DType compute, const ModelSpec& model, int64_t cache_tokens) {
  StepOptions options;
  options.kind = ProgramKind::generate;
  options.cost = {1, cache_tokens, compute};
  options.gather.dtype = compute;
  options.kv_cache_tokens = cache_tokens;
  return checked(build_step(model, options));
}

}  // namespace stepforge
