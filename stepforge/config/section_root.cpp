// SPDX-License-Identifier: Apache-2.0
// The top of the configuration: its own two fields and the list of sections.
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<Config> make_config_schema() {
  SchemaOf<Config> schema;
  schema
      .field("preset", &Config::preset,
             {.doc = "Name of a configuration shipped with the program, such as llama3-8b, that this one "
                     "starts from; "
                     "empty = the defaults.",
              .on_resume = unreported})
      .field("run_dir", &Config::run_dir,
             {.doc = "Folder that receives everything a run writes: logs, metrics, checkpoints, exports.",
              .non_empty = true,
              .on_resume = unreported})
      .table("model", &Config::model, model_section(), "The architecture of the model.",
             guarded(Guard::model))
      .table("tokenizer", &Config::tokenizer, tokenizer_section(), "How text becomes tokens.")
      .table("data", &Config::data, data_section(), "What the model is trained and validated on.")
      .table("training", &Config::training, training_section(),
             "Batch, length and numerics of the training loop.")
      .table("precision", &Config::precision, precision_section(), "Number formats.")
      .table("optimizer", &Config::optimizer, optimizer_section(), "The parameter update.")
      .table("lr_scheduler", &Config::lr_scheduler, lr_scheduler_section(),
             "The learning rate over the steps.")
      .table("parallelism", &Config::parallelism, parallelism_section(),
             "How the work is spread over the ranks of a job.")
      .table("comm", &Config::comm, comm_section(), "Traffic between ranks.")
      .table("activation_checkpoint", &Config::activation_checkpoint, activation_checkpoint_section(),
             "Which activations are dropped in the forward pass and recomputed in the backward pass.")
      .table("checkpoint", &Config::checkpoint, checkpoint_section(), "Saving, resuming and initial weights.",
             unreported)
      .table("validation", &Config::validation, validation_section(), "Loss on held-out data while training.")
      .table("sampling", &Config::sampling, sampling_section(), "Text written by the model while training.",
             unreported)
      .table("metrics", &Config::metrics, metrics_section(), "What is logged, where and how often.",
             unreported)
      .table("debug", &Config::debug, debug_section(), "Help in finding faults.", unreported);
  return schema;
}

}  // namespace

const TableSchema& config_schema() {
  static const SchemaOf<Config> schema = make_config_schema();
  return schema;
}

}  // namespace stepforge
