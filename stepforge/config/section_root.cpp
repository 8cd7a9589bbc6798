// SPDX-License-Identifier: Apache-2.0
// The top level of the configuration: its own two fields and the sections.
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<Config> make_config_schema() {
  return SchemaOf<Config>()
      .field("preset", &Config::preset,
             "Name of a built-in configuration to start from, such as llama3-8b; empty means the defaults.",
             {}, kUnreported)
      .field("run_dir", &Config::run_dir, "Output folder for logs, metrics, checkpoints and exports.",
             {.non_empty = true}, kUnreported)
      .table("model", &Config::model, model_section(), "Model architecture.", guarded(Guard::model))
      .table("adapter", &Config::adapter, adapter_section(),
             "Low-rank adapters, which are trained while the model's own weights are frozen.",
             guarded(Guard::model))
      .table("preference", &Config::preference, preference_section(), "Learning which answers are better.")
      .table("distillation", &Config::distillation, distillation_section(),
             "Learning the predictions of another model.")
      .table("tokenizer", &Config::tokenizer, tokenizer_section(), "Tokenizer.")
      .table("data", &Config::data, data_section(), "Training and validation data.")
      .table("training", &Config::training, training_section(),
             "Batch size, length and numerics of the training loop.")
      .table("precision", &Config::precision, precision_section(), "Data types.")
      .table("optimizer", &Config::optimizer, optimizer_section(), "Optimizer.")
      .table("lr_scheduler", &Config::lr_scheduler, lr_scheduler_section(), "Learning rate schedule.")
      .table("parallelism", &Config::parallelism, parallelism_section(),
             "Distribution of the model and the data over ranks.")
      .table("comm", &Config::comm, comm_section(), "Communication between ranks.")
      .table("activation_checkpoint", &Config::activation_checkpoint, activation_checkpoint_section(),
             "Activation checkpointing: which activations are recomputed in the backward pass.")
      .table("checkpoint", &Config::checkpoint, checkpoint_section(), "Saving, resuming and initial weights.",
             kUnreported)
      .table("validation", &Config::validation, validation_section(), "Validation during training.")
      .table("sampling", &Config::sampling, sampling_section(), "Text generation during training.",
             kUnreported)
      .table("metrics", &Config::metrics, metrics_section(), "Logging and metrics.", kUnreported)
      .table("kernels", &Config::kernels, kernels_section(), "Implementations of fused operations.")
      .table("debug", &Config::debug, debug_section(), "Debugging.", kUnreported)
      .table(
          "machine", &Config::machine, machine_section(),
          "The machines for which `stepforge plan` predicts memory and time; training does not depend on them.",
          kUnreported)
      .table("experimental", &Config::experimental, experimental_section(), "Plug-ins.", kUnreported);
}

}  // namespace

const TableSchema& config_schema() {
  static const SchemaOf<Config> schema = make_config_schema();
  return schema;
}

}  // namespace stepforge
