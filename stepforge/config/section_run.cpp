// SPDX-License-Identifier: Apache-2.0
// Sections [checkpoint], [validation], [sampling], [metrics] and [debug].
#include "stepforge/config/sections.h"

namespace stepforge {

SchemaOf<CheckpointConfig> checkpoint_section() {
  SchemaOf<CheckpointConfig> schema;
  schema.field("enable", &CheckpointConfig::enable, {.doc = "Whether checkpoints are written."})
      .field("folder", &CheckpointConfig::folder,
             {.doc = "Folder of the checkpoints inside run_dir.", .non_empty = true})
      .field("interval", &CheckpointConfig::interval,
             {.doc = "Steps between two checkpoints.", .unit = "steps", .min = 1, .max = 1e12})
      .field("keep_latest_k", &CheckpointConfig::keep_latest_k,
             {.doc = "Checkpoints kept, the newest ones; 0 = all (1 would leave nothing to fall back on if "
                     "the newest "
                     "is damaged).",
              .unit = "checkpoints",
              .min = 2,
              .max = 1e9,
              .special = 0})
      .field("save_at_end", &CheckpointConfig::save_at_end, {.doc = "Whether the last step is saved too."})
      .field("last_save_in_hf", &CheckpointConfig::last_save_in_hf,
             {.doc = "Whether the last step is also written as a Hugging Face folder, hf/step-N in run_dir."})
      .field("export_dtype", &CheckpointConfig::export_dtype,
             {.doc = "Type of the weights in that folder.", .choices = {"fp32", "bf16", "fp16"}})
      .field("async", &CheckpointConfig::async,
             {.doc = "Whether a background thread writes while training goes on."})
      .field("timeout", &CheckpointConfig::timeout,
             {.doc = "How long ranks wait for the slowest disk of one of them when they save or check a "
                     "checkpoint.",
              .unit = "seconds",
              .min = 1,
              .max = 1e6})
      .field("resume", &CheckpointConfig::resume,
             {.doc = "Whether the run of this folder is continued; with false, a folder with an earlier run "
                     "is refused."})
      .field("load_step", &CheckpointConfig::load_step,
             {.doc = "Step to resume from; -1 = the newest complete one.",
              .unit = "steps",
              .min = 0,
              .max = 1e12,
              .special = -1})
      .field("allow_changed", &CheckpointConfig::allow_changed,
             {.doc = "What may differ from the checkpoint on resume."})
      .field("initial_load_path", &CheckpointConfig::initial_load_path,
             {.doc = "Checkpoint or Hugging Face folder whose weights a fresh run starts from; empty = "
                     "random weights."})
      .field("initial_load_model_only", &CheckpointConfig::initial_load_model_only,
             {.doc = "Whether only the weights of initial_load_path are taken, not its optimizer, schedule "
                     "and data "
                     "position."});
  return schema;
}

SchemaOf<ValidationConfig> validation_section() {
  SchemaOf<ValidationConfig> schema;
  schema
      .field("freq", &ValidationConfig::freq,
             {.doc = "Steps between two validations; 0 = none.", .unit = "steps", .min = 0, .max = 1e12})
      .field("steps", &ValidationConfig::steps,
             {.doc = "Batches of one validation; -1 = all of the validation data.",
              .unit = "batches",
              .min = 1,
              .max = 1e12,
              .special = -1});
  return schema;
}

SchemaOf<SamplingConfig> sampling_section() {
  SchemaOf<SamplingConfig> schema;
  schema
      .field("freq", &SamplingConfig::freq,
             {.doc = "Steps between two samples; 0 = none.", .unit = "steps", .min = 0, .max = 1e12})
      .field("prompt", &SamplingConfig::prompt, {.doc = "Text that the model continues."})
      .field("max_tokens", &SamplingConfig::max_tokens,
             {.doc = "Longest continuation.", .unit = "tokens", .min = 1, .max = 1 << 24})
      .field("temperature", &SamplingConfig::temperature,
             {.doc = "Divisor of the logits; 0 = always the likeliest token.", .min = 0, .max = 1000})
      .field("top_k", &SamplingConfig::top_k,
             {.doc = "Number of likeliest tokens to choose from; 0 = all.",
              .unit = "tokens",
              .min = 0,
              .max = 1 << 24})
      .field("seed", &SamplingConfig::seed, {.doc = "Seed of the samples.", .min = 0, .max = 1e15});
  return schema;
}

SchemaOf<MetricsConfig> metrics_section() {
  SchemaOf<MetricsConfig> schema;
  schema
      .field("log_freq", &MetricsConfig::log_freq,
             {.doc = "Steps between two log lines.", .unit = "steps", .min = 1, .max = 1e12})
      .field("peak_tflops", &MetricsConfig::peak_tflops,
             {.doc = "Peak rate of the machine, against which mfu is reckoned; 0 = unknown, no mfu.",
              .unit = "TFLOP/s",
              .min = 0,
              .max = 1e9})
      .field("enable_jsonl", &MetricsConfig::enable_jsonl,
             {.doc = "Whether metrics.jsonl is written in run_dir."})
      .field("smoothing", &MetricsConfig::smoothing,
             {.doc = "Share of the past in the smoothed loss of the status line.", .min = 0, .below = 1})
      .field("status_line", &MetricsConfig::status_line,
             {.doc = "The live line at the bottom; auto shows it on a terminal only."});
  return schema;
}

SchemaOf<DebugConfig> debug_section() {
  SchemaOf<DebugConfig> schema;
  schema
      .field("print_config", &DebugConfig::print_config,
             {.doc = "Whether the whole configuration is printed at start."})
      .field("plant_nan_step", &DebugConfig::plant_nan_step,
             {.doc = "Step at which a value that is not a number is planted, to test the guard against it; "
                     "-1 = never.",
              .unit = "steps",
              .min = 1,
              .max = 1e12,
              .special = -1})
      .field("plant_nan_block", &DebugConfig::plant_nan_block,
             {.doc = "Block whose output receives the planted value."});
  return schema;
}

}  // namespace stepforge
