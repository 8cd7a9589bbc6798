// SPDX-License-Identifier: Apache-2.0
// Sections [training], [precision], [optimizer], [lr_scheduler] and [activation_checkpoint].
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<ParamGroupConfig> param_group_table() {
  return SchemaOf<ParamGroupConfig>()
      .field("pattern", &ParamGroupConfig::pattern,
             "Regular expression searched for in parameter names; "
             "a parameter belongs to the first group that matches.",
             {.non_empty = true})
      .field("lr", &ParamGroupConfig::lr, "Peak learning rate; -1 means optimizer.lr.",
             {.min = 0, .max = 1000, .special = -1})
      .field("weight_decay", &ParamGroupConfig::weight_decay,
             "Weight decay coefficient; -1 means optimizer.weight_decay.",
             {.min = 0, .max = 1000, .special = -1})
      .field("beta1", &ParamGroupConfig::beta1,
             "Exponential decay rate of the first moment; -1 means optimizer.beta1.",
             {.min = 0, .below = 1, .special = -1})
      .field("beta2", &ParamGroupConfig::beta2,
             "Exponential decay rate of the second moment; -1 means optimizer.beta2.",
             {.min = 0, .below = 1, .special = -1});
}

SchemaOf<EarlyStoppingConfig> early_stopping_table() {
  return SchemaOf<EarlyStoppingConfig>()
      .field("patience", &EarlyStoppingConfig::patience,
             "Number of validations in a row without a gain after which the run ends; 0 means that it never "
             "ends early.",
             {.unit = "validations", .min = 0, .max = 1e9})
      .field("min_gain", &EarlyStoppingConfig::min_gain,
             "How far the validation loss must fall below that of the last gain to count as one.",
             {.min = 0, .max = 1e6});
}

}  // namespace

SchemaOf<TrainingConfig> training_section() {
  return SchemaOf<TrainingConfig>()
      .field("seq_len", &TrainingConfig::seq_len, "Sequence length: the number of tokens per row.",
             {.unit = "tokens", .min = 1, .max = 1 << 24}, guarded(Guard::data))
      .field("local_batch_size", &TrainingConfig::local_batch_size,
             "Micro-batch size: the number of rows per forward pass on each rank.",
             {.unit = "rows", .min = 1, .max = 1 << 20})
      .field("global_batch_size", &TrainingConfig::global_batch_size,
             "Number of rows per optimizer step over all ranks, a multiple of local_batch_size times the "
             "data-parallel degree (the quotient is the number of gradient accumulation steps); -1 means one "
             "micro-batch per rank.",
             {.unit = "rows", .min = 1, .max = 1 << 24, .special = -1}, guarded(Guard::batch))
      .field("steps", &TrainingConfig::steps,
             "Total number of optimizer steps; 0 means that epochs sets the length of the run.",
             {.unit = "steps", .min = 0, .max = 1e12})
      .field("epochs", &TrainingConfig::epochs,
             "Number of passes over the training data; 0 means that steps sets the length of the run.",
             {.unit = "epochs", .min = 0, .max = 1e6})
      .field("seed", &TrainingConfig::seed, "Seed of the initial weights and of dropout.",
             {.min = 0, .max = 1e15}, guarded(Guard::seed))
      .field("max_norm", &TrainingConfig::max_norm,
             "Maximum norm of the gradients, which are clipped to it; 0 disables clipping.",
             {.min = 0, .max = 1e12})
      .field("norm_type", &TrainingConfig::norm_type,
             "Gradient norm that is clipped and logged; inf is the largest absolute value.")
      .field("loss_reduction", &TrainingConfig::loss_reduction,
             "Weight of each of the n labels of a sample in the loss, a weighted mean: "
             "token means 1, sample 1/n, so that all samples count alike, square 1/sqrt(n); "
             "the validation loss is always the mean over tokens.")
      .field("loss_aggregation", &TrainingConfig::loss_aggregation,
             "How the loss is averaged: token_mean is the mean over all valid labels of the step, "
             "rank_average the average over ranks of each rank's own mean.")
      .field("loss", &TrainingConfig::loss,
             "Loss of training on texts; validation reports the cross-entropy.",
             {.choices = {"cross_entropy"}, .open_to = "loss"})
      .field(
          "label_smoothing", &TrainingConfig::label_smoothing,
          "Share of the target that is spread evenly over the vocabulary, as in torch's cross_entropy; it is "
          "part of the logged training loss.",
          {.min = 0, .below = 1})
      .field("z_loss_weight", &TrainingConfig::z_loss_weight,
             "Weight of the z-loss in the gradients, the squared log-sum-exp of the logits (PaLM: "
             "1e-4), which keeps logits from growing and is not part of the logged losses.",
             {.min = 0, .max = 1})
      .field("nonfinite", &TrainingConfig::nonfinite,
             "What to do if the loss or the gradient norm is not finite: stop the run, or skip the step "
             "without updating weights and moments.")
      .field("max_skipped", &TrainingConfig::max_skipped,
             "Number of steps that may be skipped before the run stops.",
             {.unit = "steps", .min = 0, .max = 1e12})
      .field("reduction", &TrainingConfig::reduction,
             "How the gradients of micro-batches are summed: fast adds them one after another, ordered adds "
             "them in a fixed binary tree, which gives the same bits for every split of the batch.")
      .field(
          "device", &TrainingConfig::device,
          "Device on which the ranks compute: auto is a GPU if the build has the CUDA plug-in and there is one, "
          "otherwise cpu; cuda gives the ranks of a host its GPUs in turn, cuda:1 is one of them; "
          "sim is a simulated device of builds with tests.",
          {.non_empty = true}, kUnreported)
      .field("threads", &TrainingConfig::threads,
             "Number of compute threads per rank; 0 means OMP_NUM_THREADS if it is set, otherwise the "
             "available cores divided by the number of ranks on the host.",
             {.unit = "threads", .min = 0, .max = 4096}, kUnreported)
      .field("loss_chunk", &TrainingConfig::loss_chunk,
             "Number of tokens whose logits are computed at a time, which limits their memory; 0 means a "
             "number chosen from the vocabulary size.",
             {.unit = "tokens", .min = 0, .max = 1 << 24})
      .table("early_stopping", &TrainingConfig::early_stopping, early_stopping_table(),
             "When the run ends before its last step.", kUnreported)
      .field("callbacks", &TrainingConfig::callbacks,
             "Callbacks of the run, in the order in which they are called; "
             "all stands for the built-in and plug-in callbacks that the list does not name.",
             {.choices = {"all", "report", "alarms", "logging", "best", "sampling", "export"},
              .open_to = "callback"},
             kUnreported);
}

SchemaOf<PrecisionConfig> precision_section() {
  return SchemaOf<PrecisionConfig>()
      .field("compute", &PrecisionConfig::compute,
             "Data type of activations and matrix products; the optimizer always updates fp32 weights.",
             {.choices = {"fp32", "bf16"}})
      .field("reduce", &PrecisionConfig::reduce,
             "Data type in which gradients are sent between ranks; they are always accumulated in fp32.",
             {.choices = {"fp32", "bf16", "fp16"}});
}

SchemaOf<OptimizerConfig> optimizer_section() {
  return SchemaOf<OptimizerConfig>()
      .field(
          "name", &OptimizerConfig::name,
          "Optimizer: adamw; adamw_bf16 and adamw_8bit, which keep their moments in bf16 or in 8 bits with "
          "a scale per 256 elements, the latter only for matrices whose row length is a multiple of 256; "
          "lion; sgd; muon, which updates the matrices of the layers, with adamw for the embedding, "
          "the head, norms and biases.",
          {.choices = {"adamw", "adamw_bf16", "adamw_8bit", "lion", "sgd", "muon"}, .open_to = "optimizer"})
      .field("lr", &OptimizerConfig::lr, "Peak learning rate.", {.min = 0, .max = 1000})
      .field("beta1", &OptimizerConfig::beta1, "Exponential decay rate of the first moment.",
             {.min = 0, .below = 1})
      .field("beta2", &OptimizerConfig::beta2, "Exponential decay rate of the second moment.",
             {.min = 0, .below = 1})
      .field("eps", &OptimizerConfig::eps,
             "Epsilon added to the square root of the second moment for numerical stability.",
             {.min = 0, .max = 1})
      .field(
          "weight_decay", &OptimizerConfig::weight_decay,
          "Decoupled weight decay coefficient, multiplied by the learning rate; sgd adds it to the gradient "
          "instead, as torch.optim.SGD does.",
          {.min = 0, .max = 1000})
      .field("momentum", &OptimizerConfig::momentum,
             "Decay rate of the momentum of sgd and muon; 0 is sgd without momentum, and without state.",
             {.min = 0, .below = 1})
      .field("nesterov", &OptimizerConfig::nesterov,
             "Whether sgd and muon look ahead by their momentum (Nesterov).")
      .field("muon_scale", &OptimizerConfig::muon_scale,
             "Size of an orthogonalized update: rms scales it to the size of an AdamW update, so that both "
             "share a learning rate, spectral multiplies it by the root of rows over columns, at least 1.")
      .field("muon_iterations", &OptimizerConfig::muon_iterations,
             "Number of Newton-Schulz iterations that orthogonalize an update of muon.",
             {.unit = "iterations", .min = 1, .max = 100})
      .field("muon_compute", &OptimizerConfig::muon_compute, "Data type of muon's Newton-Schulz iterations.",
             {.choices = {"fp32", "bf16"}})
      .field("decay_all", &OptimizerConfig::decay_all,
             "Whether to apply weight decay to norms and biases too, not only to matrices.")
      .tables("param_groups", &OptimizerConfig::param_groups, param_group_table(),
              "Parameters with their own hyper-parameters: one table {pattern, lr, weight_decay, beta1, "
              "beta2} per group.");
}

SchemaOf<LrSchedulerConfig> lr_scheduler_section() {
  return SchemaOf<LrSchedulerConfig>()
      .field("warmup_steps", &LrSchedulerConfig::warmup_steps,
             "Number of steps of linear warmup to the peak learning rate.",
             {.unit = "steps", .min = 0, .max = 1e12})
      .field("warmup_ratio", &LrSchedulerConfig::warmup_ratio,
             "Fraction of the schedule that is warmup, instead of warmup_steps; -1 means warmup_steps.",
             {.min = 0, .max = 1, .special = -1})
      .field("total_steps", &LrSchedulerConfig::total_steps,
             "Length of the schedule; 0 means the number of steps of the run.",
             {.unit = "steps", .min = 0, .max = 1e12})
      .field("decay_ratio", &LrSchedulerConfig::decay_ratio,
             "Fraction of the steps, at the end, over which the learning rate decays; -1 means all steps "
             "after the warmup.",
             {.min = 0, .max = 1, .special = -1})
      .field("decay_type", &LrSchedulerConfig::decay_type,
             "Shape of the learning rate decay; with decay_ratio it is a warmup-stable-decay schedule.",
             {.choices = {"linear", "sqrt", "cosine", "polynomial", "inverse_sqrt", "constant"},
              .open_to = "learning-rate decay"})
      .field("cycles", &LrSchedulerConfig::cycles,
             "With decay_type cosine: number of times that the learning rate falls from its peak.",
             {.unit = "cycles", .min = 1, .max = 1e6})
      .field("power", &LrSchedulerConfig::power, "With decay_type polynomial: its exponent.",
             {.min = 0, .max = 100})
      .field("min_lr_factor", &LrSchedulerConfig::min_lr_factor,
             "Learning rate at the end of the decay, as a fraction of the peak.", {.min = 0, .max = 1});
}

SchemaOf<ActivationCheckpointConfig> activation_checkpoint_section() {
  return SchemaOf<ActivationCheckpointConfig>()
      .field(
          "mode", &ActivationCheckpointConfig::mode,
          "What is recomputed in the backward pass: nothing (none), all layers (full), every n-th layer "
          "(every_n), the layers in blocks (blocks), the parts of all layers in regions (regions), the calls of "
          "all layers in calls (calls), or the calls that cost least, so that memory_budget is kept (budget).")
      .field("every_n", &ActivationCheckpointConfig::every_n,
             "With mode every_n: interval between recomputed layers; 2 means every second layer.",
             {.unit = "layers", .min = 1, .max = 10000})
      .field("blocks", &ActivationCheckpointConfig::blocks,
             "With mode blocks: indices of the recomputed layers, starting at 0.", {.min = 0, .max = 9999})
      .field("regions", &ActivationCheckpointConfig::regions,
             "With mode regions: parts of every layer that are recomputed.")
      .field(
          "calls", &ActivationCheckpointConfig::calls,
          "With mode calls: kinds of calls (swiglu, rms_norm), or single calls with their region (mlp.gate_up), "
          "that are recomputed in every layer; `stepforge plan --calls` lists them.",
          {.non_empty = true})
      .field("memory_budget", &ActivationCheckpointConfig::memory_budget,
             "With mode budget: fraction of the activation memory of each layer that may be kept, between "
             "recomputing all that saves memory (0) and keeping all (1).",
             {.min = 0, .max = 1});
}

}  // namespace stepforge
