// SPDX-License-Identifier: Apache-2.0
// VeOmni: sections model, data and train, the older files with flat keys in train.
#include <algorithm>
#include <array>
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kTextOnly = "images, video and audio are not available yet";
constexpr std::string_view kNoMultimodalLine = "read only with images, video and audio";

constexpr auto kVeOmniKeys = std::to_array<ForeignKey>({
    {"model.model_path", "model.from", kModelFolder, model},
    {"model.config_path", "model.from", "copy the sizes of the model into [model]", read},
    {"model.tokenizer_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.attn_implementation", "", kFusedKernels, needless},
    {"model.moe_implementation", "", kFusedKernels, needless},
    {"model.ops_implementation.*", "", kFusedKernels, needless},
    {"model.force_use_huggingface", "", "there is one implementation of each family", needless},
    {"model.basic_modules", "", "blocks, the embedding and the head are sharded units", needless},
    {"model.lora_config.*", "", kNoLora, refused},
    {"model.lora_config", "", kNoLora, refused},
    {"model.lora_rank", "", kNoLora, refused},
    {"model.lora_alpha", "", "read only with an adapter", needless},
    {"model.lora_target_modules", "", "read only with an adapter", needless},
    {"model.lora_target_modules_support", "", "read only with an adapter", needless},
    {"model.encoders.*", "", kTextOnly, refused},
    {"model.decoders.*", "", kTextOnly, refused},
    {"model.foundation.*", "model.dim", "the sizes in [model]", lost},
    {"model.condition_model_path", "", kTextOnly, refused},
    {"model.condition_model_cfg.*", "", kNoMultimodalLine, needless},
    {"model.teacher_model_path", "", "this method of training is not available yet", refused},
    {"model.model_config.*", "model.dim", "keys of [model] must agree with the model", lost},
    {"data.train_path", "data.sources", kOneTablePerSource, read},
    {"data.eval_path", "data.validation", kOneTablePerSource, read},
    {"data.source_name", "data.sources", "name in each source", needless},
    {"data.data_type", "data.sources", "format in each source", read},
    {"data.text_keys", "data.sources", "field in each source", read},
    {"data.chat_template", "data.chat_template", "", read},
    {"data.max_seq_len", "training.seq_len"},
    {"data.train_size", "", "the data are counted", read},
    {"data.train_sample", "", "the data are counted", needless},
    {"data.datasets_type", "", "it follows from the format of the files", needless},
    {"data.multisource_datasets_type", "", "it follows from the format of the files", needless},
    {"data.datasets_repeat", "training.epochs", "", lost, "1"},
    {"data.data_tag", "", "it follows from the format of the files", needless},
    {"data.dyn_bsz_buffer_size", "", "rows are packed over the whole data set", needless},
    {"data.dataloader_type", "", "text is tokenized once and memory-mapped", needless},
    {"data.dataloader.drop_last", "data.epoch_remainder",
     "rows that do not fill a step go into the next epoch", needless},
    {"data.dataloader.*", "", "text is tokenized once and memory-mapped", needless},
    {"data.num_workers", "", "text is tokenized once and memory-mapped", needless},
    {"data.prefetch_factor", "", "text is tokenized once and memory-mapped", needless},
    {"data.drop_last", "data.epoch_remainder", "rows that do not fill a step go into the next epoch",
     needless},
    {"data.pin_memory", "", "text is tokenized once and memory-mapped", needless},
    {"data.shuffle", "data.shuffle"},
    {"data.mm_configs.*", "", kNoMultimodalLine, needless},
    {"data.height", "", kNoMultimodalLine, needless},
    {"data.width", "", kNoMultimodalLine, needless},
    {"dpo_config.*", "", kNoPreference, refused},
    {"train.output_dir", "run_dir"},
    {"train.checkpoint.output_dir", "run_dir"},
    {"train.training_task", "", kTextOnly, refused},
    {"train.lr", "optimizer.lr"},
    {"train.lr_min", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"train.lr_start", "", "not available yet: the warm-up starts near 0", lost, "0"},
    {"train.lr_warmup_ratio", "lr_scheduler.warmup_ratio", "", read},
    {"train.lr_decay_style", "lr_scheduler.decay_type", "", decay},
    {"train.lr_decay_ratio", "lr_scheduler.total_steps", "the steps until the rate is constant", lost, "1"},
    {"train.weight_decay", "optimizer.weight_decay"},
    {"train.max_grad_norm", "training.max_norm"},
    {"train.optimizer", "optimizer.name", "", optimizer},
    {"train.optimizer.type", "optimizer.name", "", optimizer},
    {"train.optimizer.lr", "optimizer.lr"},
    {"train.optimizer.lr_min", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"train.optimizer.lr_start", "", "not available yet: the warm-up starts near 0", lost, "0"},
    {"train.optimizer.lr_warmup_ratio", "lr_scheduler.warmup_ratio", "", read},
    {"train.optimizer.lr_decay_style", "lr_scheduler.decay_type", "", decay},
    {"train.optimizer.lr_decay_ratio", "lr_scheduler.total_steps", "the steps until the rate is constant",
     lost, "1"},
    {"train.optimizer.weight_decay", "optimizer.weight_decay"},
    {"train.optimizer.max_grad_norm", "training.max_norm"},
    {"train.optimizer.no_decay_modules", "optimizer.param_groups",
     "one table { pattern, weight_decay } per group", lost},
    {"train.optimizer.no_decay_params", "optimizer.param_groups",
     "one table { pattern, weight_decay } per group", lost},
    {"train.optimizer.muon_momentum", "optimizer.momentum"},
    {"train.optimizer.muon_nesterov", "optimizer.nesterov"},
    {"train.optimizer.muon_ns_steps", "optimizer.muon_iterations"},
    {"train.optimizer.muon_adjust_lr_fn", "optimizer.muon_scale", "\"rms\" or \"spectral\"", read},
    {"train.optimizer.muon_lr", "optimizer.param_groups", "one table { pattern, lr } per group", lost},
    {"train.optimizer.muon_weight_decay", "optimizer.param_groups",
     "one table { pattern, weight_decay } per group", lost, "0"},
    {"train.optimizer.muon_ns_implementation", "", kFusedKernels, needless},
    {"train.optimizer.muon_expert_zero_comm", "", kFusedKernels, needless},
    {"train.num_train_epochs", "training.epochs", "", read},
    {"train.max_steps", "training.steps", "of one epoch there", read},
    {"train.micro_batch_size", "training.local_batch_size", "", read},
    {"train.global_batch_size", "training.global_batch_size", "", read},
    {"train.bsz_warmup_ratio", "", "not available yet: the batch has one size", lost, "0"},
    {"train.bsz_warmup_init_mbtoken", "", "read only with bsz_warmup_ratio", needless},
    {"train.dyn_bsz", "data.packing", "\"budget\" or \"none\"", read},
    {"train.dyn_bsz_margin", "", "rows are packed over the whole data set", needless},
    {"train.dyn_bsz_buffer_size", "", "rows are packed over the whole data set", needless},
    {"train.dyn_bsz_runtime", "", "rows are packed over the whole data set", needless},
    {"train.dyn_bsz_count_mode", "", "rows are packed over the whole data set", needless},
    {"train.rmpad", "", "documents of a row never see each other", needless},
    {"train.rmpad_with_pos_ids", "", "documents of a row never see each other", needless},
    {"train.pad_to_length", "", "rows are always full", needless},
    {"train.freeze_encoder", "", kTextOnly, needless},
    {"train.freeze_vit", "", kTextOnly, needless},
    {"train.vit_lr", "", kTextOnly, needless},
    {"train.seed", "training.seed"},
    {"train.enable_full_determinism", "training.reduction",
     "\"ordered\" gives the same bits on any number of ranks", lost},
    {"train.enable_mixed_precision", "precision.compute", "\"bf16\"", read},
    {"train.accelerator.fsdp_config.mixed_precision.enable", "precision.compute", "\"bf16\"", read},
    {"train.accelerator.fsdp_config.mixed_precision.param_dtype", "precision.compute", "", read},
    {"train.accelerator.fsdp_config.mixed_precision.reduce_dtype", "precision.reduce"},
    {"train.accelerator.fsdp_config.mixed_precision.*", "precision.compute", "", needless},
    {"train.accelerator.fsdp_config.offload", "parallelism.fsdp_cpu_offload"},
    {"train.accelerator.fsdp_config.reshard_after_forward", "parallelism.fsdp_reshard_after_forward",
     "\"always\" or \"never\"", read},
    {"train.accelerator.fsdp_config.*", "parallelism.data_parallel_shard_degree", kShardedByDefault,
     needless},
    {"train.accelerator.dp_replicate_size", "parallelism.data_parallel_replicate_degree"},
    {"train.accelerator.dp_shard_size", "parallelism.data_parallel_shard_degree"},
    {"train.accelerator.tp_size", "parallelism.tensor_parallel_degree"},
    {"train.accelerator.pp_size", "parallelism.pipeline_parallel_degree"},
    {"train.accelerator.ep_size", "parallelism.expert_parallel_degree"},
    {"train.accelerator.cp_size", "parallelism.context_parallel_degree"},
    {"train.accelerator.ulysses_size", "parallelism.context_parallel_degree",
     "with context_parallel_method = \"ulysses\"", read},
    {"train.accelerator.offload.*", "activation_checkpoint.mode", "recomputation saves the same memory",
     lost},
    {"train.accelerator.offload_config.enable_activation", "activation_checkpoint.mode",
     "recomputation saves the same memory", lost},
    {"train.accelerator.offload_config.*", "", "read only with enable_activation", needless},
    {"train.data_parallel_mode", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"train.data_parallel_replicate_size", "parallelism.data_parallel_replicate_degree"},
    {"train.data_parallel_shard_size", "parallelism.data_parallel_shard_degree"},
    {"train.tensor_parallel_size", "parallelism.tensor_parallel_degree"},
    {"train.expert_parallel_size", "parallelism.expert_parallel_degree"},
    {"train.pipeline_parallel_size", "parallelism.pipeline_parallel_degree"},
    {"train.ulysses_parallel_size", "parallelism.context_parallel_degree",
     "with context_parallel_method = \"ulysses\"", read},
    {"train.context_parallel_size", "parallelism.context_parallel_degree"},
    {"train.enable_fsdp_offload", "parallelism.fsdp_cpu_offload"},
    {"train.enable_activation_offload", "activation_checkpoint.mode", "recomputation saves the same memory",
     lost},
    {"train.activation_gpu_limit", "", "read only with enable_activation_offload", needless},
    {"train.enable_reshard_after_forward", "parallelism.fsdp_reshard_after_forward",
     "\"always\" or \"never\"", read},
    {"train.enable_rank0_init", "", "weights are read where they are needed", needless},
    {"train.init_device", "", "weights are read where they are needed", needless},
    {"train.broadcast_model_weights_from_rank0", "", "weights are read where they are needed", needless},
    {"train.ep_sharded_stream_load", "", "weights are read where they are needed", needless},
    {"train.enable_gradient_checkpointing", "activation_checkpoint.mode", "\"full\" or \"none\"", read},
    {"train.gradient_checkpointing.enable", "activation_checkpoint.mode", "\"full\" or \"none\"", read},
    {"train.gradient_checkpointing.*", "", "recomputation gives the same bits", needless},
    {"train.enable_reentrant", "", "recomputation gives the same bits", needless},
    {"train.ops_to_save", "activation_checkpoint.regions", "", lost},
    {"train.chunk_mbs_config.*", "", "read only with enable", needless},
    {"train.torch_compile.*", "", kFusedKernels, needless},
    {"train.enable_compile", "", kFusedKernels, needless},
    {"train.empty_cache_steps", "", "there is no cache to empty", needless},
    {"train.gc_steps", "", "there is no garbage collector", needless},
    {"train.log_steps", "metrics.log_freq"},
    {"train.ckpt_manager", "", "there is one checkpoint format", needless},
    {"train.checkpoint.manager", "", "there is one checkpoint format", needless},
    {"train.save_steps", "checkpoint.interval", "", positive},
    {"train.checkpoint.save_steps", "checkpoint.interval", "", positive},
    {"train.save_epochs", "checkpoint.interval", "in steps", lost, "0"},
    {"train.checkpoint.save_epochs", "checkpoint.interval", "in steps", lost, "0"},
    {"train.hf_save_steps", "checkpoint.last_save_in_hf", "the last step only", lost, "0"},
    {"train.checkpoint.hf_save_steps", "checkpoint.last_save_in_hf", "the last step only", lost, "0"},
    {"train.checkpoint.hf_save_epochs", "checkpoint.last_save_in_hf", "the last step only", lost, "0"},
    {"train.save_hf_weights", "checkpoint.last_save_in_hf"},
    {"train.checkpoint.save_hf_weights", "checkpoint.last_save_in_hf"},
    {"train.checkpoint.save_async", "checkpoint.async"},
    {"train.load_checkpoint_path", "checkpoint.load_step",
     "a run continues by itself; load_step chooses a checkpoint", lost, "auto"},
    {"train.checkpoint.load_path", "checkpoint.load_step",
     "a run continues by itself; load_step chooses a checkpoint", lost, "auto"},
    {"train.checkpoint.*", "", "checkpoints fit any number of ranks", needless},
    {"train.eval_steps", "validation.freq", "", positive},
    {"train.eval_epochs", "validation.freq", "in steps", lost, "0"},
    {"train.use_wandb", "", kCurvesElsewhere, lost},
    {"train.wandb.enable", "", kCurvesElsewhere, lost},
    {"train.wandb.*", "", "read only with wandb.enable", needless},
    {"train.wandb_project", "", "read only with use_wandb", needless},
    {"train.wandb_name", "", "read only with use_wandb", needless},
    {"train.enable_profiling", "", kTraceOption, lost},
    {"train.profile.enable", "", kTraceOption, lost},
    {"train.profile.*", "", kTraceOption, needless},
    {"train.profile_start_step", "", kTraceOption, needless},
    {"train.profile_end_step", "", kTraceOption, needless},
    {"train.channel_loss.*", "", "the loss of each source is always logged", needless},
    {"train.moe_load_balance_monitor_interval", "metrics.router", "\"summary\", the default", needless},
    // Lists of weighted sources, in files of their own.
    {"sources", "data.sources", "one table { path, weight } per source", read},
    {"names", "data.sources", "name in each source", read},
    {"schedule", "data.sources", "weight in each source", read},
});

constexpr auto kVeOmniDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "5e-5"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.95"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.0"},
    {"optimizer.decay_all", "true"},
    {"training.max_norm", "1.0"},
    {"training.seq_len", "2048"},
    {"training.local_batch_size", "1"},
    {"training.seed", "42"},
    {"precision.compute", "bf16"},
    {"precision.reduce", "fp32"},
    {"lr_scheduler.decay_type", "constant"},
    {"lr_scheduler.warmup_steps", "0"},
    {"activation_checkpoint.mode", "full"},
    {"metrics.log_freq", "1"},
});

/// Its max_steps is the number of steps of one epoch; train_size, in tokens, gives it too, and the smaller one holds.
void convert_veomni_length(ForeignConversion& conversion) {
  const auto epochs = conversion.number("train.num_train_epochs");
  const auto size = conversion.number("data.train_size");
  const auto cap = conversion.number("train.max_steps");
  const double n_epochs = epochs.value_or(1);
  if (size) conversion.need_nothing("data.train_size", "the data are counted");
  if (!cap || *cap <= 0) {
    if (epochs) return conversion.set("train.num_train_epochs", "training.epochs", number_text(n_epochs));
    return conversion.set_default("training.epochs", "1");
  }
  const TrainingConfig& training = conversion.config().training;
  double per_epoch = *cap;
  if (size && conversion.is_set("training.global_batch_size")) {
    const auto row_tokens = static_cast<double>(training.global_batch_size * training.seq_len);
    per_epoch = std::min(per_epoch, std::ceil(*size / row_tokens));
  }
  conversion.set("train.max_steps", "training.steps", number_text(per_epoch * n_epochs),
                 format("max_steps, which counts steps of one epoch, x {} epochs", n_epochs));
}

void convert_veomni_data(ForeignConversion& conversion) {
  std::string type = conversion.text("data.data_type");
  if (type.empty()) type = "conversation";
  if (type == "dpo" || type == "classification") conversion.refuse("data.data_type", kNoPreference);
  if (type == "diffusion") conversion.refuse("data.data_type", kTextOnly);
  const std::string field = conversion.text("data.text_keys");
  const bool is_text = type == "plaintext";
  std::string options = is_text ? "" : ", format = \"messages\"";
  if (is_text && !field.empty() && field != "text") options += format(", field = {}", toml_string(field));
  if (!is_text && field == "conversations") options = ", format = \"sharegpt\"";
  convert_paths(conversion, "data.train_path", "data.sources", options);
  convert_paths(conversion, "data.eval_path", "data.validation", options);
  const ConfigValue* packed = conversion.find("train.dyn_bsz");
  const bool is_packed = packed == nullptr || !is_off(*packed, "");
  const std::string_view packing = !is_packed ? "none" : is_text ? "concat" : "budget";
  if (packed != nullptr) conversion.set("train.dyn_bsz", "data.packing", std::string(packing));
  if (packed == nullptr) conversion.set_default("data.packing", packing);
  convert_template(conversion, "data.chat_template");
}

void convert_veomni_precision(ForeignConversion& conversion) {
  const std::string_view enable = conversion.has("train.enable_mixed_precision")
                                      ? "train.enable_mixed_precision"
                                      : "train.accelerator.fsdp_config.mixed_precision.enable";
  constexpr std::string_view kType = "train.accelerator.fsdp_config.mixed_precision.param_dtype";
  const std::string type = conversion.text(kType);
  // Off means that weights are bf16 themselves.
  if (conversion.has(enable)) conversion.find(enable);
  if (conversion.has(enable) || !type.empty())
    conversion.set(type.empty() ? enable : kType, "precision.compute", type.empty() ? "bf16" : type);
}

void convert_veomni_switches(ForeignConversion& conversion) {
  for (const std::string_view key :
       {"train.enable_gradient_checkpointing", "train.gradient_checkpointing.enable"})
    if (const ConfigValue* on = conversion.find(key))
      conversion.set(key, "activation_checkpoint.mode", is_off(*on, "") ? "none" : "full");
  for (const std::string_view key :
       {"train.enable_reshard_after_forward", "train.accelerator.fsdp_config.reshard_after_forward"})
    if (const ConfigValue* on = conversion.find(key))
      conversion.set(key, "parallelism.fsdp_reshard_after_forward", is_off(*on, "") ? "never" : "always");
  for (const std::string_view key : {"train.ulysses_parallel_size", "train.accelerator.ulysses_size"}) {
    const auto degree = conversion.number(key);
    if (!degree) continue;
    conversion.set(key, "parallelism.context_parallel_degree", number_text(*degree));
    if (*degree > 1) conversion.set("", "parallelism.context_parallel_method", "ulysses");
  }
  constexpr std::string_view kScale = "train.optimizer.muon_adjust_lr_fn";
  if (const std::string scale = conversion.text(kScale); !scale.empty())
    conversion.set(kScale, "optimizer.muon_scale", scale == "match_rms_adamw" ? "rms" : "spectral");
}

void finish_veomni(ForeignConversion& conversion) {
  if (const std::string path = conversion.text("model.config_path"); !path.empty()) {
    if (conversion.has("model.model_path")) {
      conversion.need_nothing("model.config_path", "the folder of the model has its configuration");
    } else {
      conversion.lose("model.config_path",
                      "the model is new there: copy the sizes in its config.json into [model]");
    }
  }
  if (const auto rows = conversion.number("train.micro_batch_size"))
    conversion.set("train.micro_batch_size", "training.local_batch_size", number_text(*rows));
  if (!conversion.has("train.micro_batch_size")) conversion.set_default("training.local_batch_size", "1");
  if (const auto rows = conversion.number("train.global_batch_size"))
    conversion.set("train.global_batch_size", "training.global_batch_size", number_text(*rows));
  convert_veomni_length(conversion);
  convert_veomni_data(conversion);
  convert_veomni_precision(conversion);
  convert_veomni_switches(conversion);
  for (const std::string_view section : {"train.", "train.optimizer."}) {
    const std::string ratio = format("{}lr_warmup_ratio", section);
    if (conversion.has(ratio)) convert_warmup(conversion, "", ratio);
    const std::string floor = format("{}lr_min", section);
    if (!conversion.has(floor)) continue;
    if (conversion.config().lr_scheduler.decay_type == "linear") {
      conversion.need_nothing(floor, "only its cosine schedule has a floor");
    } else {
      convert_min_lr(conversion, floor);
    }
  }
  for (const std::string_view key : {"sources", "names", "schedule"})
    if (conversion.has(key))
      conversion.lose(key, "a list of weighted sources; data.sources has path and weight of each");
}

}  // namespace

const ForeignTrainer& veomni_trainer() {
  static constexpr ForeignTrainer trainer{.name = "veomni",
                                          .title = "VeOmni",
                                          .keys = kVeOmniKeys,
                                          .inherited = {},
                                          .defaults = kVeOmniDefaults,
                                          .finish = finish_veomni};
  return trainer;
}

}  // namespace stepforge
