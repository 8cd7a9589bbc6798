// SPDX-License-Identifier: Apache-2.0
// Sections [training], [precision], [optimizer], [lr_scheduler] and [activation_checkpoint].
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<ParamGroupConfig> param_group_table() {
  SchemaOf<ParamGroupConfig> schema;
  schema
      .field("pattern", &ParamGroupConfig::pattern,
             {.doc = "Regular expression sought in the parameter's name; the first group that matches wins.",
              .non_empty = true})
      .field("lr", &ParamGroupConfig::lr,
             {.doc = "Peak learning rate; -1 = optimizer.lr.", .min = 0, .max = 1000, .special = -1})
      .field("weight_decay", &ParamGroupConfig::weight_decay,
             {.doc = "Weight decay; -1 = optimizer.weight_decay.", .min = 0, .max = 1000, .special = -1})
      .field("beta1", &ParamGroupConfig::beta1,
             {.doc = "Decay of the first moment; -1 = optimizer.beta1.", .min = 0, .below = 1, .special = -1})
      .field(
          "beta2", &ParamGroupConfig::beta2,
          {.doc = "Decay of the second moment; -1 = optimizer.beta2.", .min = 0, .below = 1, .special = -1});
  return schema;
}

}  // namespace

SchemaOf<TrainingConfig> training_section() {
  SchemaOf<TrainingConfig> schema;
  schema
      .field("seq_len", &TrainingConfig::seq_len,
             {.doc = "Length of one row.",
              .unit = "tokens",
              .min = 1,
              .max = 1 << 24,
              .on_resume = guarded(Guard::data)})
      .field("local_batch_size", &TrainingConfig::local_batch_size,
             {.doc = "Rows of one micro-batch, the batch of one forward pass.",
              .unit = "rows",
              .min = 1,
              .max = 1 << 20})
      .field("global_batch_size", &TrainingConfig::global_batch_size,
             {.doc = "Rows of one optimizer step, a multiple of local_batch_size times the ranks that read "
                     "different rows (the rest is gradient "
                     "accumulation); "
                     "-1 = one micro-batch on each rank.",
              .unit = "rows",
              .min = 1,
              .max = 1 << 24,
              .special = -1,
              .on_resume = guarded(Guard::batch)})
      .field("steps", &TrainingConfig::steps,
             {.doc = "Optimizer steps of the whole run; 0 = given by epochs.",
              .unit = "steps",
              .min = 0,
              .max = 1e12})
      .field("epochs", &TrainingConfig::epochs,
             {.doc = "Passes over the data; 0 = given by steps.", .unit = "epochs", .min = 0, .max = 1e6})
      .field("seed", &TrainingConfig::seed,
             {.doc = "Seed of the initial weights and of dropout.",
              .min = 0,
              .max = 1e15,
              .on_resume = guarded(Guard::seed)})
      .field(
          "max_norm", &TrainingConfig::max_norm,
          {.doc = "Gradients of a larger global norm are scaled down to it; 0 = the norm is reported only.",
           .min = 0,
           .max = 1e12})
      .field(
          "norm_type", &TrainingConfig::norm_type,
          {.doc = "Which norm of the gradients is reported and clipped: l1, l2, l3, or inf for the largest "
                  "element."})
      .field("loss_aggregation", &TrainingConfig::loss_aggregation,
             {.doc = "What the loss of a step is: token_mean is the mean over all its valid labels, "
                     "rank_average the average over ranks of each one's mean over its own."})
      .field(
          "nonfinite", &TrainingConfig::nonfinite,
          {.doc =
               "What happens when the loss or the gradient norm is not finite: the run stops, or the step is "
               "skipped with weights and moments unchanged."})
      .field("max_skipped", &TrainingConfig::max_skipped,
             {.doc = "Skipped steps after which the run stops all the same.",
              .unit = "steps",
              .min = 0,
              .max = 1e12})
      .field("reduction", &TrainingConfig::reduction,
             {.doc = "How gradients of micro-batches are summed: fast adds in turn, ordered adds along a "
                     "fixed binary "
                     "tree so that any split of the batch gives the same bits."})
      .field(
          "threads", &TrainingConfig::threads,
          {.doc =
               "Compute threads; 0 = the usable cores divided by the ranks of the host, or OMP_NUM_THREADS.",
           .unit = "threads",
           .min = 0,
           .max = 4096,
           .on_resume = unreported})
      .field("loss_chunk", &TrainingConfig::loss_chunk,
             {.doc = "Tokens whose logits exist at the same time; 0 = chosen by the vocabulary's size.",
              .unit = "tokens",
              .min = 0,
              .max = 1 << 24});
  return schema;
}

SchemaOf<PrecisionConfig> precision_section() {
  SchemaOf<PrecisionConfig> schema;
  schema
      .field(
          "compute", &PrecisionConfig::compute,
          {.doc = "Format of activations and matrix products; weights are kept and updated in fp32 always.",
           .choices = {"fp32", "bf16"}})
      .field("reduce", &PrecisionConfig::reduce,
             {.doc = "Format in which gradients travel between ranks; they are written, summed and kept in "
                     "fp32 always.",
              .choices = {"fp32", "bf16", "fp16"}});
  return schema;
}

SchemaOf<OptimizerConfig> optimizer_section() {
  SchemaOf<OptimizerConfig> schema;
  schema.field("name", &OptimizerConfig::name, {.doc = "Update rule."})
      .field("lr", &OptimizerConfig::lr, {.doc = "Peak learning rate.", .min = 0, .max = 1000})
      .field("beta1", &OptimizerConfig::beta1, {.doc = "Decay of the first moment.", .min = 0, .below = 1})
      .field("beta2", &OptimizerConfig::beta2, {.doc = "Decay of the second moment.", .min = 0, .below = 1})
      .field("eps", &OptimizerConfig::eps,
             {.doc = "Added to the root of the second moment.", .min = 0, .max = 1})
      .field("weight_decay", &OptimizerConfig::weight_decay,
             {.doc = "Decoupled weight decay, times the learning rate.", .min = 0, .max = 1000})
      .field("decay_all", &OptimizerConfig::decay_all,
             {.doc = "Whether norms and biases are decayed too, not only matrices."})
      .tables("param_groups", &OptimizerConfig::param_groups, param_group_table(),
              "Parameters that are treated otherwise: one table {pattern, lr, weight_decay, beta1, beta2} "
              "per group.");
  return schema;
}

SchemaOf<LrSchedulerConfig> lr_scheduler_section() {
  SchemaOf<LrSchedulerConfig> schema;
  schema
      .field("warmup_steps", &LrSchedulerConfig::warmup_steps,
             {.doc = "Steps over which the rate rises linearly to its peak.",
              .unit = "steps",
              .min = 0,
              .max = 1e12})
      .field("total_steps", &LrSchedulerConfig::total_steps,
             {.doc = "Steps the schedule is drawn over; 0 = the steps of the run.",
              .unit = "steps",
              .min = 0,
              .max = 1e12})
      .field(
          "decay_ratio", &LrSchedulerConfig::decay_ratio,
          {.doc =
               "Share of the steps over which the rate falls, at the end; -1 = everything after the warm-up.",
           .min = 0,
           .max = 1,
           .special = -1})
      .field("decay_type", &LrSchedulerConfig::decay_type, {.doc = "Shape of the fall."})
      .field("min_lr_factor", &LrSchedulerConfig::min_lr_factor,
             {.doc = "Rate at the end of the fall as a share of the peak.", .min = 0, .max = 1});
  return schema;
}

SchemaOf<ActivationCheckpointConfig> activation_checkpoint_section() {
  SchemaOf<ActivationCheckpointConfig> schema;
  schema
      .field(
          "mode", &ActivationCheckpointConfig::mode,
          {.doc =
               "What is recomputed: nothing, every layer, every n-th layer, the listed layers, or the listed "
               "regions of every layer."})
      .field("every_n", &ActivationCheckpointConfig::every_n,
             {.doc = "With mode every_n: one layer in so many is recomputed.",
              .unit = "layers",
              .min = 1,
              .max = 10000})
      .field(
          "blocks", &ActivationCheckpointConfig::blocks,
          {.doc = "With mode blocks: the layers that are recomputed, counted from 0.", .min = 0, .max = 9999})
      .field("regions", &ActivationCheckpointConfig::regions,
             {.doc = "With mode regions: the parts of every layer that are recomputed."});
  return schema;
}

}  // namespace stepforge
