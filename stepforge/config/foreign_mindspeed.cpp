// SPDX-License-Identifier: Apache-2.0
// MindSpeed-LLM's fsdp2 YAML: sections model, data, parallel, training and optimization.
#include <array>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/foreign_hugging_face.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kBlocksAreUnits = "blocks, the embedding and the head are sharded units";

constexpr auto kMindSpeedKeys = std::to_array<ForeignKey>({
    {"model.model_name_or_path", "model.from", kModelFolder, read},
    {"model.train_from_scratch", "model.from", "copy the sizes of the model into [model]", read},
    {"model.tokenizer_name_or_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.model_id", "", "config.json of the model states it", needless},
    {"model.trust_remote_code", "", "no code of a model is run", needless},
    {"model.init_model_with_meta_device", "", "weights are read where they are needed", needless},
    {"model.cache_dir", "", "models are not downloaded", needless},
    {"model.use_fast_tokenizer", "", "there is one tokenizer", needless},
    {"model.resize_vocab", "model.vocab_size", "larger than the model's", lost},
    {"model.add_tokens", "", "not available yet: add them to the tokenizer's files", lost},
    {"model.add_special_tokens", "", "not available yet: add them to the tokenizer's files", lost},
    {"model.quant_recipe_name", "", kNoQuantization, refused},
    {"model.quant_converters", "", kNoQuantization, refused},
    {"model.converters", "", kNoQuantization, refused},
    {"model.enable_fsdp_low_precision_all_gather", "", kNoQuantization, refused},
    {"data.dataset", "data.sources", kOneTablePerDataset, read},
    {"data.dataset.file_name", "data.sources", kOneTablePerSource, read},
    {"data.dataset.*", "data.sources", kOneTablePerSource, lost},
    {"data.eval_dataset", "data.validation", kOneTablePerDataset, read},
    {"data.dataset_dir", "data.sources", kOneTablePerDataset, read},
    {"data.mix_strategy", "data.sources", "combine = \"concat\", or weights", read},
    {"data.interleave_probs", "data.sources", "weight in each source", read},
    {"data.mask_history", "data.sources", "loss_on = \"last\" in each source", read},
    {"data.train_on_prompt", "data.sources", "loss_on = \"all\" in each source", read},
    {"data.template", "data.chat_template", "", read},
    {"data.default_system", "", "not available yet: the template has the system message", lost},
    {"data.enable_thinking", "", "the template decides", needless},
    {"data.tool_format", "", "the template renders tools", needless},
    {"data.cutoff_len", "training.seq_len"},
    {"data.packing", "data.packing", "", read},
    {"data.neat_packing", "data.packing", "\"best_fit\"", read},
    {"data.max_samples", "data.sources", "not available yet as an option; num_samples in dataset_info.json",
     lost},
    {"data.val_size", "data.validation_fraction"},
    {"data.split", "data.split"},
    {"data.streaming", "", "text is tokenized once and memory-mapped", needless},
    {"data.buffer_size", "", "rows are shuffled over the whole data set", needless},
    {"data.tokenized_path", "data.cache_dir", "the cache has its own names", needless},
    {"data.overwrite_cache", "", "the cache is updated when the data changes", needless},
    {"data.preprocessing_num_workers", "", "tokenization uses all cores", needless},
    {"data.preprocessing_batch_size", "", "tokenization uses all cores", needless},
    {"data.data_shared_file_system", "", "the cache is shared by file locks", needless},
    {"data.data_manager_type", "", "it follows from the format of the files", needless},
    {"data.create_attention_mask", "", "documents of a row never see each other", needless},
    {"data.reset_attention_mask", "", "documents of a row never see each other", needless},
    {"data.append_eod", "data.eos"},
    {"parallel.fsdp_size", "parallelism.data_parallel_shard_degree"},
    {"parallel.tp_size", "parallelism.tensor_parallel_degree"},
    {"parallel.ep_size", "parallelism.expert_parallel_degree"},
    {"parallel.ep_fsdp_size", "", "experts are sharded over the ranks that hold the same ones", needless},
    {"parallel.cp_size", "parallelism.context_parallel_degree"},
    {"parallel.cp_type", "parallelism.context_parallel_method",
     "\"allgather\", \"ring\", \"ulysses\" or \"hybrid\"", read},
    {"parallel.fsdp_modules", "", kBlocksAreUnits, needless},
    {"parallel.ep_modules", "", kBlocksAreUnits, needless},
    {"parallel.ep_fsdp_modules", "", kBlocksAreUnits, needless},
    {"parallel.ignored_modules", "", kNotAvailable, lost},
    {"parallel.tp_colwise", "parallelism.tensor_parallel_plan", "one table { pattern, style } per rule",
     needless},
    {"parallel.tp_rowwise", "parallelism.tensor_parallel_plan", "one table { pattern, style } per rule",
     needless},
    {"parallel.ep_dispatcher", "parallelism.expert_parallel_dispatcher", "\"alltoall\" or \"allgather\"",
     needless},
    {"parallel.recompute", "activation_checkpoint.mode", "\"full\"", when_true, "\"full\""},
    {"parallel.recompute_modules", "activation_checkpoint.blocks", "with mode = \"blocks\"", read},
    {"parallel.param_dtype", "precision.compute"},
    {"parallel.reduce_dtype", "precision.reduce"},
    {"parallel.reshard_after_forward", "parallelism.fsdp_reshard_after_forward", "\"always\" or \"never\"",
     read},
    {"parallel.num_to_forward_prefetch", "parallelism.fsdp_forward_prefetch"},
    {"parallel.num_to_backward_prefetch", "parallelism.fsdp_backward_prefetch"},
    {"parallel.forward_prefetch", "parallelism.fsdp_forward_prefetch"},
    {"parallel.backward_prefetch", "parallelism.fsdp_backward_prefetch"},
    {"training.stage", "data.packing", "", read},
    {"training.finetuning_type", "", kNoLora, refused, "full"},
    {"training.output_dir", "run_dir"},
    {"training.optimizer", "optimizer.name", "", optimizer},
    {"training.lr", "optimizer.lr"},
    {"training.weight_decay", "optimizer.weight_decay"},
    {"training.adam_beta1", "optimizer.beta1"},
    {"training.adam_beta2", "optimizer.beta2"},
    {"training.adam_epsilon", "optimizer.eps"},
    {"training.max_grad_norm", "training.max_norm"},
    {"training.lr_scheduler_type", "lr_scheduler.decay_type", "", decay},
    {"training.warmup_ratio", "lr_scheduler.warmup_ratio", "", read},
    {"training.warmup_steps", "lr_scheduler.warmup_steps", "", read},
    {"training.min_lr", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"training.num_train_epochs", "training.epochs", "", read},
    {"training.max_steps", "training.steps", "", read},
    {"training.per_device_train_batch_size", "training.local_batch_size", "", read},
    {"training.gradient_accumulation_steps", "training.global_batch_size",
     "local_batch_size x ranks x accumulation steps", read},
    {"training.seed", "training.seed", "", read},
    {"training.deterministic", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     needless},
    {"training.disable_shuffling", "data.shuffle", "the opposite value", negate},
    {"training.dataloader_num_workers", "", "text is tokenized once and memory-mapped", needless},
    {"training.dataloader_drop_last", "data.epoch_remainder",
     "rows that do not fill a step go into the next epoch", needless},
    {"training.dataloader_pin_memory", "", "text is tokenized once and memory-mapped", needless},
    {"training.save_steps", "checkpoint.interval"},
    {"training.save_epochs", "checkpoint.interval", "in steps", needless},
    {"training.save_total_limit", "checkpoint.keep_latest_k", "at least 2", read},
    {"training.save_only_model", "", "not available yet: checkpoints hold all that a resume needs", lost},
    {"training.save_async", "checkpoint.async"},
    {"training.save_hf_weights", "checkpoint.last_save_in_hf"},
    {"training.resume_from_checkpoint", "checkpoint.load_step",
     "a run continues by itself; load_step chooses a checkpoint", lost, "true"},
    {"training.logging_steps", "metrics.log_freq", "", read},
    {"training.log_throughput", "", "the speed is always logged", needless},
    {"training.log_cpu_memory", "", "the peak of memory is always logged", needless},
    {"training.calculate_per_token_loss", "training.loss_reduction", "\"token\"", needless},
    {"training.mtp_loss_scaling", "model.mtp_loss_weight"},
    {"training.router_aux_loss_coef", "model.router_aux_loss_weight"},
    {"training.profile", "", kTraceOption, lost},
    {"training.use_fused_rmsnorm", "", kFusedKernels, needless},
    {"training.use_fused_rotary_pos_emb", "", kFusedKernels, needless},
    {"training.moe_grouped_gemm", "", kFusedKernels, needless},
    {"training.use_flash_attn", "", kFusedKernels, needless},
    {"training.enable_chunk_loss", "training.loss_chunk", "chosen from the vocabulary", needless},
    {"training.chunk_loss_size", "training.loss_chunk"},
    {"training.fix_router", "", kNotAvailable, lost},
    {"optimization.chunk_loss_size", "training.loss_chunk"},
    {"optimization.fix_router", "", kNotAvailable, lost},
    {"optimization.*", "", kFusedKernels, needless},
    {"profiler.*", "", kTraceOption, needless},
});

constexpr auto kMindSpeedDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "1e-5"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.95"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.01"},
    {"training.max_norm", "1.0"},
    {"training.seq_len", "2048"},
    {"training.seed", "42"},
    {"precision.compute", "bf16"},
    {"precision.reduce", "fp32"},
    {"lr_scheduler.decay_type", "cosine"},
    {"checkpoint.interval", "500"},
    {"metrics.log_freq", "1"},
});

void convert_mindspeed_model(ForeignConversion& conversion) {
  constexpr std::string_view key = "model.model_name_or_path";
  const std::string path = conversion.text(key);
  const bool is_new = conversion.is_true("model.train_from_scratch");
  if (path.empty()) return;
  if (!is_new)
    return conversion.set(key, "model.from", toml_string(path),
                          "a folder on this machine: download it first");
  conversion.lose(key, "the model is new there: copy the sizes in its config.json into [model]");
  if (!conversion.is_set("tokenizer.path")) {
    conversion.set("", "tokenizer.type", "hf");
    conversion.set("", "tokenizer.path", toml_string(path));
  }
}

/// Whole layers, or parts of all of them: "model.layers.{*}.self_attn".
void convert_recomputed_modules(ForeignConversion& conversion) {
  constexpr std::string_view key = "parallel.recompute_modules";
  const ConfigValue* modules = conversion.find(key);
  if (modules == nullptr) return;
  if (!conversion.is_set("activation_checkpoint.mode"))
    return conversion.need_nothing(key, "read only with recompute");
  std::string regions;
  for (const std::string& name : names_in(*modules)) {
    const std::string_view region = name.ends_with(".self_attn") ? "attention"
                                    : name.ends_with(".mlp")     ? "mlp"
                                                                 : "";
    if (region.empty()) return conversion.need_nothing(key, "all layers are recomputed with mode = \"full\"");
    regions += format("{}\"{}\"", regions.empty() ? "" : ", ", region);
  }
  conversion.set("parallel.recompute", "activation_checkpoint.mode", "regions");
  conversion.set(key, "activation_checkpoint.regions", format("[{}]", regions));
}

void finish_mindspeed(ForeignConversion& conversion) {
  convert_mindspeed_model(conversion);
  const bool is_pretraining = conversion.text("training.stage") == "pt";
  if (conversion.has("data.dataset.file_name")) {
    convert_paths(conversion, "data.dataset.file_name", "data.sources");
  } else if (const ConfigValue* path = is_pretraining ? conversion.find("data.dataset") : nullptr) {
    conversion.set_sources("data.dataset", "data.sources", {format("path = {}", toml_string(path->text))},
                           /*are_joined=*/true);
  } else {
    convert_datasets(conversion, "data.");
  }
  convert_llama_factory_packing(conversion, "data.", is_pretraining);
  convert_template(conversion, "data.template");
  finish_hugging_face(conversion, "training.");
  // Of their schedules only the cosine one has a floor.
  if (!conversion.has("training.warmup_ratio") && !conversion.has("training.warmup_steps")) {
    conversion.unset("lr_scheduler.warmup_steps");
    conversion.set_default("lr_scheduler.warmup_ratio", "0.03");
  }
  const bool is_cosine = !conversion.is_set("lr_scheduler.decay_type") ||
                         conversion.config().lr_scheduler.decay_type == "cosine";
  if (!conversion.is_set("optimizer.lr")) conversion.set_default("optimizer.lr", "1e-5");
  if (is_cosine && conversion.has("training.min_lr")) {
    conversion.set_default("lr_scheduler.decay_type", "cosine");
    convert_min_lr(conversion, "training.min_lr");
  } else if (conversion.has("training.min_lr")) {
    conversion.need_nothing("training.min_lr", "only its cosine schedule has a floor");
  } else if (is_cosine && conversion.config().optimizer.lr > 1e-6) {
    conversion.set_default("lr_scheduler.min_lr_factor", toml_float(1e-6 / conversion.config().optimizer.lr));
  }
  if (const std::string type = conversion.text("parallel.cp_type"); !type.empty())
    conversion.set("parallel.cp_type", "parallelism.context_parallel_method",
                   type == "kvallgather" ? "allgather" : type);
  convert_recomputed_modules(conversion);
  if (const ConfigValue* reshard = conversion.find("parallel.reshard_after_forward"))
    conversion.set("parallel.reshard_after_forward", "parallelism.fsdp_reshard_after_forward",
                   is_off(*reshard, "") ? "never" : "always");
}

}  // namespace

const ForeignTrainer& mindspeed_trainer() {
  static constexpr ForeignTrainer trainer{.name = "mindspeed",
                                          .title = "MindSpeed-LLM",
                                          .keys = kMindSpeedKeys,
                                          .inherited = {},
                                          .defaults = kMindSpeedDefaults,
                                          .finish = finish_mindspeed};
  return trainer;
}

}  // namespace stepforge
