// SPDX-License-Identifier: Apache-2.0
// Sections [checkpoint], [validation], [sampling], [metrics], [kernels], [debug] and [machine].
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<CheckpointLoadConfig> checkpoint_load_section() {
  return SchemaOf<CheckpointLoadConfig>()
      .field("optimizer", &CheckpointLoadConfig::optimizer,
             "The optimizer's state and its number of updates; if false, both start anew.")
      .field("schedule", &CheckpointLoadConfig::schedule,
             "The position in the learning-rate schedule; "
             "if false, a new one begins with its warm-up and lasts for the rest of the run.")
      .field("data", &CheckpointLoadConfig::data,
             "The position in the data; if false, the data starts from the beginning and may differ.")
      .field("counters", &CheckpointLoadConfig::counters,
             "The numbers of steps, tokens and skipped steps, the smoothed loss and the state of callbacks; "
             "if false, steps count from 0, which only a new run can do.");
}

}  // namespace

SchemaOf<CheckpointConfig> checkpoint_section() {
  return SchemaOf<CheckpointConfig>()
      .field("enable", &CheckpointConfig::enable, "Whether to save checkpoints.")
      .field("folder", &CheckpointConfig::folder, "Folder for checkpoints, relative to run_dir.",
             {.non_empty = true})
      .field("interval", &CheckpointConfig::interval, "Number of steps between two checkpoints.",
             {.unit = "steps", .min = 1, .max = 1e12})
      .field(
          "keep_latest_k", &CheckpointConfig::keep_latest_k,
          "Number of latest checkpoints to keep, at least 2 in case the newest one is damaged; 0 means all.",
          {.unit = "checkpoints", .min = 2, .max = 1e9, .special = 0})
      .field(
          "keep_best", &CheckpointConfig::keep_best,
          "Whether to save a checkpoint whenever the validation loss is the lowest of the run, and to keep "
          "the last of them in addition to keep_latest_k.")
      .field("save_at_end", &CheckpointConfig::save_at_end,
             "Whether to save a checkpoint after the last step.")
      .field("last_save_in_hf", &CheckpointConfig::last_save_in_hf,
             "Whether to export the last checkpoint in Hugging Face format too, to hf/step-N in run_dir.")
      .field("export_dtype", &CheckpointConfig::export_dtype,
             "Data type of the weights of an export, unless export --dtype names another; "
             "model.from sets the type of its model.",
             {.choices = {"fp32", "bf16", "fp16"}})
      .field("async", &CheckpointConfig::async,
             "Whether to write checkpoints in a background thread while training continues.")
      .field("timeout", &CheckpointConfig::timeout,
             "Maximum time for each stage of saving or verifying a checkpoint, such as writing the files; a "
             "save that takes longer fails.",
             {.unit = "seconds", .min = 1, .max = 1e6})
      .field("resume", &CheckpointConfig::resume,
             "Whether to resume the run in run_dir; if false, a run_dir with metrics or checkpoints of an "
             "earlier run is refused.")
      .field("load_step", &CheckpointConfig::load_step,
             "Step of the checkpoint to resume from; -1 means the newest complete one.",
             {.unit = "steps", .min = 0, .max = 1e12, .special = -1})
      .field("allow_changed", &CheckpointConfig::allow_changed,
             "What may differ from the checkpoint when resuming.")
      .field("initial_load_path", &CheckpointConfig::initial_load_path,
             "Checkpoint or Hugging Face folder that provides the initial weights of a new run; empty means "
             "random initialization.")
      .field("initial_load_model_only", &CheckpointConfig::initial_load_model_only,
             "Whether to load only the weights from initial_load_path, and nothing that `load` names.")
      .table("load", &CheckpointConfig::load, checkpoint_load_section(),
             "What is loaded in addition to the weights, from a checkpoint of the run or of "
             "initial_load_path; a switch acts once: later checkpoints of the run are resumed in full.")
      .field("exclude_frozen", &CheckpointConfig::exclude_frozen,
             "Whether checkpoints leave out the weights that model.freeze names; "
             "a resume takes them from initial_load_path, and refuses different ones.")
      .field("strict", &CheckpointConfig::strict,
             "Whether weights and optimizer state must be exactly those of the model; if false, "
             "what fits is loaded, the rest keeps its initial values, and the differences are logged.");
}

SchemaOf<ValidationConfig> validation_section() {
  return SchemaOf<ValidationConfig>()
      .field("freq", &ValidationConfig::freq, "Number of steps between two validations; 0 disables them.",
             {.unit = "steps", .min = 0, .max = 1e12})
      .field("steps", &ValidationConfig::steps,
             "Number of batches per validation, over all ranks; -1 means the whole validation data.",
             {.unit = "batches", .min = 1, .max = 1e12, .special = -1});
}

SchemaOf<SamplingConfig> sampling_section() {
  return SchemaOf<SamplingConfig>()
      .field("freq", &SamplingConfig::freq, "Number of steps between two samples; 0 disables them.",
             {.unit = "steps", .min = 0, .max = 1e12})
      .field("at_ends", &SamplingConfig::at_ends,
             "Whether to sample before the first step and after the last one, too.")
      .field("prompt", &SamplingConfig::prompt,
             "Text that the model continues; in a run on conversations, the message of a user, "
             "rendered by the chat template.")
      .field("max_tokens", &SamplingConfig::max_tokens, "Maximum number of tokens to generate.",
             {.unit = "tokens", .min = 1, .max = 1 << 24})
      .field("temperature", &SamplingConfig::temperature,
             "Sampling temperature; 0 always chooses the most likely token.", {.min = 0, .max = 1000})
      .field("top_k", &SamplingConfig::top_k,
             "Number of most likely tokens to sample from; 0 means the whole vocabulary.",
             {.unit = "tokens", .min = 0, .max = 1 << 24})
      .field("seed", &SamplingConfig::seed, "Seed of the sampling.", {.min = 0, .max = 1e15});
}

SchemaOf<MetricsConfig> metrics_section() {
  return SchemaOf<MetricsConfig>()
      .field("log_freq", &MetricsConfig::log_freq, "Number of steps between two log lines.",
             {.unit = "steps", .min = 1, .max = 1e12})
      .field("peak_tflops", &MetricsConfig::peak_tflops,
             "Peak performance of the hardware of one rank, used to compute MFU; "
             "0 means unknown, and MFU is not reported.",
             {.unit = "TFLOP/s", .min = 0, .max = 1e9})
      .field("enable_jsonl", &MetricsConfig::enable_jsonl, "Whether to write metrics.jsonl in run_dir.")
      .field("smoothing", &MetricsConfig::smoothing,
             "Weight of the previous value in the smoothed loss of the status line; 0 disables smoothing.",
             {.min = 0, .below = 1})
      .field("status_line", &MetricsConfig::status_line,
             "Whether to show a live status line; auto shows it only on a terminal.")
      .field("router", &MetricsConfig::router,
             "What is logged about the routers of experts: nothing, the balance of each layer and its "
             "mean, or also the tokens of each expert in metrics.jsonl.");
}

SchemaOf<KernelsConfig> kernels_section() {
  return SchemaOf<KernelsConfig>().field(
      "reference", &KernelsConfig::reference,
      "Whether training computes each fused operation by its reference, the same mathematics in plain tensor "
      "operations, which is slower and takes more memory than planned: to find whether a kernel causes a "
      "result.");
}

SchemaOf<DebugConfig> debug_section() {
  return SchemaOf<DebugConfig>()
      .field("print_config", &DebugConfig::print_config, "Whether to print the whole configuration at start.")
      .field("prove_layout", &DebugConfig::prove_layout,
             "Whether to run `stepforge prove` for this job before training.")
      .field("check_copies_freq", &DebugConfig::check_copies_freq,
             "How often ranks that hold copies of the same weights compare them, bit for bit; 0 means never.",
             {.unit = "steps", .min = 0, .max = 1e12})
      .field("plant_nan_step", &DebugConfig::plant_nan_step,
             "Step at which a NaN is planted, to test how the run handles it; -1 means never.",
             {.unit = "steps", .min = 1, .max = 1e12, .special = -1})
      .field("plant_nan_block", &DebugConfig::plant_nan_block,
             "Block whose output receives the planted NaN, such as layers.0.");
}

SchemaOf<MachineConfig> machine_section() {
  return SchemaOf<MachineConfig>()
      .field(
          "name", &MachineConfig::name,
          "A machine that `stepforge plan --machine list` names, or a file of your own, which docs/planning.md "
          "describes; empty means assumed rates, and the memory of this machine.")
      .field(
          "hosts", &MachineConfig::hosts,
          "Number of hosts of this machine, whose devices all have a rank; 0 means as many as the ranks need.",
          {.unit = "hosts", .min = 0, .max = 1 << 16});
}

SchemaOf<ExperimentalConfig> experimental_section() {
  return SchemaOf<ExperimentalConfig>().field("custom_import", &ExperimentalConfig::custom_import,
                                              "Plug-ins to load: paths of shared libraries, "
                                              "as with --plugin; only train loads those that a "
                                              "file names, other commands need --plugin for them; "
                                              "docs/extending.md describes plug-ins.",
                                              {.non_empty = true});
}

}  // namespace stepforge
