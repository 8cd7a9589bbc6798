// SPDX-License-Identifier: Apache-2.0
// LLaMA-Factory: its own keys, beside those of TrainingArguments.
#include <array>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_adapter.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/foreign_hugging_face.h"
#include "stepforge/config/foreign_preference.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kNotThisMethod = "this method of training is not available yet";
constexpr std::string_view kOnlyText = "images, video and audio are not available yet";
constexpr std::string_view kOnlyWithLora = "read only with an adapter";
constexpr std::string_view kOnlyPreferences = "read only with preference training";
constexpr std::string_view kWithRefModel = "read only with ref_model";
constexpr std::string_view kOnlyGenerating = "`stepforge chat` and `generate` have such options";

constexpr auto kLlamaFactoryKeys = std::to_array<ForeignKey>({
    {"model_name_or_path", "model.from", kModelFolder, model},
    {"cache_dir", "", "data.cache_dir is for tokenized data; models are not downloaded", needless},
    {"use_fast_tokenizer", "", "there is one tokenizer", needless},
    {"resize_vocab", "model.vocab_size", "larger than the model's", lost},
    {"add_tokens", "", "not available yet: add them to the tokenizer's files", lost},
    {"add_special_tokens", "", "not available yet: add them to the tokenizer's files", lost},
    {"new_special_tokens_config", "", "not available yet: add them to the tokenizer's files", lost},
    {"split_special_tokens", "", kNotAvailable, lost},
    {"low_cpu_mem_usage", "", "weights are memory-mapped", needless},
    {"infer_dtype", "", kOnlyGenerating, needless},
    {"infer_backend", "", kOnlyGenerating, needless},
    {"rope_scaling", "model.rope_scaling.type", "yarn, dynamic, linear or llama3, with factor", lost},
    {"flash_attn", "", kFusedKernels, needless},
    {"enable_liger_kernel", "", kFusedKernels, needless},
    {"use_v1_kernels", "", kFusedKernels, needless},
    {"use_unsloth", "", kFusedKernels, needless},
    {"use_unsloth_gc", "activation_checkpoint.mode", "\"full\"", when_true, "\"full\""},
    {"shift_attn", "", kNotAvailable, lost},
    {"mixture_of_depths", "", kNotThisMethod, refused},
    {"moe_aux_loss_coef", "model.router_aux_loss_weight"},
    {"disable_gradient_checkpointing", "activation_checkpoint.mode", "\"none\"", read},
    {"upcast_layernorm", "", "norms are computed in fp32", needless},
    {"upcast_lmhead_output", "", "the loss is computed in fp32", needless},
    {"stage", "preference.loss", "of pairs; data.packing of single texts", read},
    {"finetuning_type", "adapter.type", "\"lora\" or \"none\"", read},
    {"freeze_trainable_layers", "model.freeze", "regular expressions of what is not trained", lost},
    {"freeze_trainable_modules", "model.freeze", "regular expressions of what is not trained", lost},
    {"freeze_vision_tower", "", "there is no vision tower", needless},
    {"freeze_multi_modal_projector", "", "there is no vision tower", needless},
    {"freeze_language_model", "model.freeze", "regular expressions of what is not trained", lost},
    {"train_mm_proj_only", "", kOnlyText, refused},
    {"adapter_name_or_path", "adapter.from", "a folder of PEFT on this machine", read},
    {"create_new_adapter", "adapter.from", "", read},
    {"adapter_folder", "", kOnlyWithLora, needless},
    {"lora_rank", "adapter.rank", "", read},
    {"lora_target", "adapter.targets", "names of modules, or \"all-linear\"", read},
    {"lora_alpha", "adapter.alpha", "", read},
    {"lora_dropout", "adapter.dropout", "", read},
    {"loraplus_lr_ratio", "adapter.b_lr_ratio", "", read},
    {"loraplus_lr_embedding", "optimizer.param_groups", kEmbeddingRate, lost},
    {"use_rslora", "adapter.rslora", "", read},
    {"use_dora", "adapter.type", "\"dora\"", read},
    {"additional_target", "adapter.also_train", "names of modules", read},
    {"pissa_init", "adapter.init", "\"pissa\"", read},
    {"pissa_iter", "adapter.svd_iterations", "0 for a full SVD", read},
    {"pissa_convert", "", "`stepforge export` always writes an adapter of the whole weights", needless},
    {"oft_block_size", "", kOnlyWithLora, needless},
    {"oft_target", "", kOnlyWithLora, needless},
    {"oft_rank", "", kOnlyWithLora, needless},
    {"quantization_bit", "model.frozen_dtype", kFrozenBits, read},
    {"quantization_method", "", kNoQuantization, refused, "bnb"},
    {"quantization_type", "model.frozen_dtype", "\"nf4\"", read},
    {"double_quantization", "model.double_quantization", "", read},
    {"quantization_device_map", "", "read only with quantization_bit", needless},
    {"fp8", "", kNoQuantization, refused},
    {"fp8_backend", "", "read only with fp8", needless},
    {"fp8_enable_fsdp_float8_all_gather", "", "read only with fp8", needless},
    {"pref_beta", "preference.beta", "", read},
    {"pref_loss", "preference.loss", "dpo, hinge, ipo, simpo or orpo", read},
    {"pref_ftx", "preference.sft_weight", "", read},
    {"pref_bco_weight", "", kOtherPairLoss, read},
    {"dpo_label_smoothing", "preference.label_smoothing", "", read},
    {"kto_chosen_weight", "preference.desirable_weight", "", read},
    {"kto_rejected_weight", "preference.undesirable_weight", "", read},
    {"simpo_gamma", "preference.margin", "", read},
    {"ld_alpha", "", kOtherDivergence, read},
    {"ref_model", "preference.reference", kReferenceFolder, read},
    {"ref_model_adapters", "", kWithRefModel, read},
    {"ref_model_quantization_bit", "", kWithRefModel, read},
    {"ppo_*", "", "read only with stage: ppo", needless},
    {"reward_model", "", kOnlyPairs, refused},
    {"reward_model_*", "", "read only with reward_model", needless},
    {"use_galore", "", "not available yet; optimizer.name = \"adamw_8bit\" has small moments", lost},
    {"use_apollo", "", "not available yet; optimizer.name = \"adamw_8bit\" has small moments", lost},
    {"use_badam", "", kNotAvailable, lost},
    {"use_adam_mini", "", "not available yet; optimizer.name = \"adamw_8bit\" has small moments", lost},
    {"use_muon", "optimizer.name", "\"muon\"", when_true, "\"muon\""},
    {"apollo_layerwise", "", "read only with use_apollo", needless},
    {"apollo_target", "", "read only with use_apollo", needless},
    {"apollo_rank", "", "read only with use_apollo", needless},
    {"apollo_scale", "", "read only with use_apollo", needless},
    {"apollo_update_interval", "", "read only with use_apollo", needless},
    {"galore_layerwise", "", "read only with use_galore", needless},
    {"galore_target", "", "read only with use_galore", needless},
    {"galore_rank", "", "read only with use_galore", needless},
    {"galore_scale", "", "read only with use_galore", needless},
    {"galore_update_interval", "", "read only with use_galore", needless},
    {"badam_mode", "", "read only with use_badam", needless},
    {"badam_switch_mode", "", "read only with use_badam", needless},
    {"badam_switch_interval", "", "read only with use_badam", needless},
    {"badam_update_ratio", "", "read only with use_badam", needless},
    {"use_llama_pro", "", kNotThisMethod, refused},
    {"use_dft_loss", "", "training.loss takes losses of plug-ins", refused},
    {"use_asft_loss", "", "training.loss takes losses of plug-ins", refused},
    {"asft_alpha", "", "read only with use_asft_loss", needless},
    {"use_eaft_loss", "", "training.loss takes losses of plug-ins", refused},
    {"eaft_alpha", "", "read only with use_eaft_loss", needless},
    {"pure_bf16", "precision.compute", "\"bf16\", with weights in fp32", when_true, "\"bf16\""},
    {"compute_accuracy", "", kNotAvailable, lost},
    {"use_swanlab", "", kCurvesElsewhere, lost},
    {"plot_loss", "", "`stepforge plot` draws the curves", needless},
    {"include_effective_tokens_per_second", "", "the speed is always logged", needless},
    {"template", "data.chat_template", "", read},
    {"default_system", "", "not available yet: the template has the system message", lost},
    {"tool_format", "", "the template renders tools", needless},
    {"enable_thinking", "", "the template decides", needless},
    {"dataset", "data.sources", kOneTablePerDataset, read},
    {"dataset_dir", "data.sources", kOneTablePerDataset, read},
    {"eval_dataset", "data.validation", kOneTablePerDataset, read},
    {"media_dir", "", kOnlyText, needless},
    {"mix_strategy", "data.sources", "combine = \"concat\", or weights", read},
    {"interleave_probs", "data.sources", "weight in each source", read},
    {"packing", "data.packing", "\"best_fit\" or \"none\"", read},
    {"neat_packing", "data.packing", "\"best_fit\"", read},
    {"mask_history", "data.sources", "loss_on = \"last\" in each source", read},
    {"train_on_prompt", "data.sources", "loss_on = \"all\" in each source", read},
    {"cutoff_len", "training.seq_len"},
    {"val_size", "data.validation_fraction", "a fraction below 1", read},
    {"max_samples", "data.sources", "not available yet as an option; num_samples in dataset_info.json", lost},
    {"eval_num_beams", "", "no beams are searched", needless},
    {"ignore_pad_token_for_loss", "", "padding is never learned", needless},
    {"overwrite_cache", "", "the cache is updated when the data changes", needless},
    {"preprocessing_batch_size", "", "tokenization uses all cores", needless},
    {"streaming", "", "text is tokenized once and memory-mapped", needless},
    {"buffer_size", "", "rows are shuffled over the whole data set", needless},
    {"disable_shuffling", "data.shuffle", "the opposite value", negate},
    {"tokenized_path", "data.cache_dir", "the cache has its own names", needless},
    {"data_shared_file_system", "", "the cache is shared by file locks", needless},
    {"image_max_pixels", "", kOnlyText, needless},
    {"image_min_pixels", "", kOnlyText, needless},
    {"video_max_pixels", "", kOnlyText, needless},
    {"video_min_pixels", "", kOnlyText, needless},
    {"video_fps", "", kOnlyText, needless},
    {"video_maxlen", "", kOnlyText, needless},
    {"temperature", "", kOnlyGenerating, needless},
    {"top_p", "", kOnlyGenerating, needless},
    {"max_new_tokens", "", kOnlyGenerating, needless},
    {"export_dir", "", "not a configuration key: use `stepforge export`", lost},
    {"export_size", "", "not a configuration key: use `stepforge export`", needless},
    {"export_device", "", "not a configuration key: use `stepforge export`", needless},
    {"export_legacy_format", "", "not a configuration key: use `stepforge export`", needless},
    {"ray_run_name", "run_dir", "the folder names the run", needless},
    {"ray_num_workers", "", "use `stepforge launch --nproc N`", needless},
    {"resources_per_worker.*", "", "use `stepforge launch --nproc N`", needless},
    {"placement_strategy", "", "use `stepforge launch --nproc N`", needless},
    {"use_kt", "", kNotThisMethod, refused},
    {"kt_config.*", "", "read only with use_kt", needless},
    {"kt_*", "", "read only with use_kt", needless},
    // Its bridge to Megatron
    {"tensor_model_parallel_size", "parallelism.tensor_parallel_degree"},
    {"pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree"},
    {"context_parallel_size", "parallelism.context_parallel_degree"},
    {"expert_model_parallel_size", "parallelism.expert_parallel_degree"},
    {"sequence_parallel", "parallelism.enable_sequence_parallel"},
    {"use_distributed_optimizer", "", "moments are always sharded", needless},
    {"overlap_param_gather", "", "communication overlaps by itself", needless},
    {"overlap_grad_reduce", "", "communication overlaps by itself", needless},
    {"bias_activation_fusion", "", kFusedKernels, needless},
    {"apply_rope_fusion", "", kFusedKernels, needless},
    {"moe_grouped_gemm", "", kFusedKernels, needless},
    {"moe_token_dispatcher_type", "parallelism.expert_parallel_dispatcher", "\"alltoall\" or \"allgather\""},
    {"recompute_granularity", "activation_checkpoint.mode", "\"full\" or \"regions\"", lost},
    {"use_packed_sequences", "data.packing", "documents of a row never see each other", needless},
    // The second generation of its files
    {"optim_config.name", "optimizer.name", "", optimizer},
    {"optim_config.wd", "optimizer.weight_decay"},
    {"optim_config.momentum", "optimizer.momentum"},
    {"optim_config.nesterov", "optimizer.nesterov"},
    {"optim_config.ns_steps", "optimizer.muon_iterations"},
    {"optim_config.adamw_betas", "optimizer.beta1", "and optimizer.beta2", read},
    {"optim_config.adamw_eps", "optimizer.eps"},
    {"cp_size", "parallelism.context_parallel_degree"},
    {"model", "model.from", kModelFolder, model},
    {"model_class", "", "", lost, "llm"},
    {"train_dataset", "data.sources", "the file of data sets has to be named as sources", lost},
    {"micro_batch_size", "training.local_batch_size"},
    {"peft_config.name", "adapter.type", "\"lora\"", read},
    {"peft_config.r", "adapter.rank", "", read},
    {"peft_config.lora_alpha", "adapter.alpha", "", read},
    {"peft_config.lora_dropout", "adapter.dropout", "", read},
    {"peft_config.target_modules", "adapter.targets", "names of modules, or \"all-linear\"", read},
    {"peft_config.modules_to_save", "adapter.also_train", "names of modules", read},
    {"peft_config.use_rslora", "adapter.rslora", "", read},
    {"peft_config.use_dora", "adapter.type", "\"dora\"", read},
    {"peft_config.*", "", kOnlyLora, refused},
    {"quant_config.name", "model.frozen_dtype", kNoQuantization, refused, "bnb"},
    {"quant_config.quantization_bit", "model.frozen_dtype", kFrozenBits, read},
    {"quant_config.quantization_type", "model.frozen_dtype", "\"nf4\"", read},
    {"quant_config.double_quantization", "model.double_quantization", "", read},
    {"quant_config.*", "", kTypeOfProducts, needless},
    {"dist_config.*", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"init_config.*", "", "weights are read where they are needed", needless},
    {"kernel_config.*", "", kFusedKernels, needless},
    {"batching_strategy", "data.packing", "\"best_fit\" or \"none\"", lost, "normal"},
    {"sample_backend", "", kOnlyGenerating, needless},
});

constexpr auto kLlamaFactoryDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "5e-5"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.999"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.0"},
    {"training.max_norm", "1.0"},
    {"training.label_smoothing", "0.0"},
    {"training.seq_len", "2048"},
    {"training.seed", "42"},
    {"lr_scheduler.decay_type", "linear"},
    {"lr_scheduler.min_lr_factor", "0.0"},
    {"lr_scheduler.warmup_steps", "0"},
    {"metrics.log_freq", "500"},
    {"checkpoint.interval", "500"},
    {"checkpoint.keep_latest_k", "0"},
    {"precision.compute", "fp32"},
    {"activation_checkpoint.mode", "full"},
});

constexpr ForeignAdapter kAdapter{.rank = "lora_rank",
                                  .alpha = "lora_alpha",
                                  .dropout = "lora_dropout",
                                  .targets = "lora_target",
                                  .also_train = "additional_target",
                                  .rslora = "use_rslora",
                                  .dora = "use_dora",
                                  .pissa = "pissa_init",
                                  .pissa_iterations = "pissa_iter",
                                  .b_lr_ratio = "loraplus_lr_ratio",
                                  .from = "adapter_name_or_path",
                                  .default_alpha = 0,
                                  .default_pissa_iterations = 16};

/// Of its first files, in which a missing finetuning_type is "lora".
void convert_first_adapter(ForeignConversion& conversion) {
  const std::string type = conversion.text("finetuning_type");
  const bool is_lora = type.empty() || type == "lora";
  const std::string from = conversion.text("adapter_name_or_path");
  if (is_lora) {
    convert_lora(conversion, "finetuning_type", kAdapter);
    if (from.find(',') != std::string::npos || (!from.empty() && conversion.is_true("create_new_adapter")))
      conversion.refuse("adapter_name_or_path",
                        "one adapter is trained: merge the others with `stepforge export --merge` first");
  } else {
    need_no_lora(conversion, kAdapter, kOnlyWithLora);
    if (!from.empty()) conversion.refuse("adapter_name_or_path", kOnlyLora);
    if (type == "freeze") {
      conversion.lose("finetuning_type", "use model.freeze (regular expressions of what is not trained)");
    } else if (type != "full") {
      conversion.refuse("finetuning_type", kOnlyLora);
    }
  }
  const auto bits = conversion.number("quantization_bit");
  convert_quantization(conversion, "quantization_bit", static_cast<int64_t>(bits.value_or(0)));
  convert_quantization_type(conversion, "quantization_type");
  convert_double_quantization(conversion, "double_quantization", true);
}

/// Of the second generation of its files.
void convert_second_adapter(ForeignConversion& conversion) {
  constexpr ForeignAdapter adapter{.rank = "peft_config.r",
                                   .alpha = "peft_config.lora_alpha",
                                   .dropout = "peft_config.lora_dropout",
                                   .targets = "peft_config.target_modules",
                                   .also_train = "peft_config.modules_to_save",
                                   .rslora = "peft_config.use_rslora",
                                   .dora = "peft_config.use_dora",
                                   .default_alpha = 16};
  const std::string type = conversion.text("peft_config.name");
  if (type == "lora") {
    convert_lora(conversion, "peft_config.name", adapter);
  } else if (!type.empty()) {
    conversion.refuse("peft_config.name", kOnlyLora);
    need_no_lora(conversion, adapter, kOnlyWithLora);
  }
  const auto bits = conversion.number("quant_config.quantization_bit");
  convert_quantization(conversion, "quant_config.quantization_bit", static_cast<int64_t>(bits.value_or(0)));
  convert_quantization_type(conversion, "quant_config.quantization_type");
  convert_double_quantization(conversion, "quant_config.double_quantization", true);
}

/// A number that changes the loss of pairs, unless it is `off`.
void refuse_pair_number(ForeignConversion& conversion, std::string_view key, double off,
                        std::string_view why) {
  const auto value = conversion.number(key);
  if (!value) return;
  if (*value != off) return conversion.refuse(key, why);
  conversion.switch_off(key);
}

/// Without a ref_model it is the model without the adapter, also without one that the run continues.
void convert_factory_reference(ForeignConversion& conversion) {
  const bool is_named = conversion.has("ref_model");
  const bool is_another = convert_reference(conversion, "ref_model", "model_name_or_path");
  if (!is_another && conversion.is_set("adapter.from"))
    conversion.set("", "preference.reference", toml_string(conversion.text("model_name_or_path")),
                   storage_of(conversion.config().model.frozen_dtype).coded()
                       ? "the model without the adapter, which is not quantized here; there the reference is"
                       : "the model without the adapter");
  if (!is_named)
    return need_none_of(conversion, {"ref_model_adapters", "ref_model_quantization_bit"}, kWithRefModel);
  if (conversion.has("ref_model_adapters"))
    conversion.refuse("ref_model_adapters",
                      "preference.reference is one model: merge the adapter into it first");
  if (conversion.has("ref_model_quantization_bit"))
    conversion.lose("ref_model_quantization_bit", kReferenceHeld);
}

/// Of `stage: dpo`. Returns whether the loss is one of ours.
bool convert_stage_dpo(ForeignConversion& conversion) {
  constexpr ForeignPairs pairs{.beta = "pref_beta",
                               .label_smoothing = "dpo_label_smoothing",
                               .margin = "simpo_gamma",
                               .dropout = "lora_dropout",
                               .length = "cutoff_len",
                               .default_length = 2048};
  std::string loss = conversion.text("pref_loss");
  if (loss.empty() || loss == "sigmoid") loss = "dpo";
  if (!compares_with_reference(loss) && loss != "simpo" && loss != "orpo") {
    conversion.refuse("pref_loss", kOtherPairLoss);
    return false;
  }
  convert_pairs(conversion, conversion.has("pref_loss") ? "pref_loss" : "stage", loss, pairs);
  conversion.set("", "data.too_long", "drop");
  conversion.lose("data.too_long", kPairsDropped);
  refuse_pair_number(conversion, "ld_alpha", 1, kOtherDivergence);
  const double ftx = conversion.number("pref_ftx").value_or(0);
  if (loss == "orpo" || ftx > 0)  // orpo has the term already, with the weight 1
    conversion.set(ftx > 0 ? "pref_ftx" : "", "preference.sft_weight",
                   toml_float(loss == "orpo" ? 1 + ftx : ftx), "over tokens; there over answers first");
  if (!compares_with_reference(loss)) {
    need_none_of(conversion,
                 {"ref_model", "ref_model_adapters", "ref_model_quantization_bit", "pref_bco_weight"},
                 "the loss has no reference");
    return true;
  }
  refuse_pair_number(conversion, "pref_bco_weight", 0, kOtherPairLoss);
  convert_factory_reference(conversion);
  return true;
}

/// Of `stage: kto`.
void convert_stage_kto(ForeignConversion& conversion) {
  convert_pairs(conversion, "stage", "kto",
                {.beta = "pref_beta",
                 .desirable = "kto_chosen_weight",
                 .undesirable = "kto_rejected_weight",
                 .dropout = "lora_dropout",
                 .length = "cutoff_len",
                 .default_length = 2048});
  conversion.set("", "data.too_long", "drop");
  conversion.lose("data.too_long", kPairsDropped);
  if (const double ftx = conversion.number("pref_ftx").value_or(0); ftx > 0)
    conversion.set("pref_ftx", "preference.sft_weight", toml_float(ftx),
                   "over tokens; there over answers first");
  convert_factory_reference(conversion);
  need_none_of(conversion, {"pref_loss", "dpo_label_smoothing", "simpo_gamma", "pref_bco_weight", "ld_alpha"},
               "read only with stage: dpo");
}

/// Of `stage: rm`, where adapters keep their dropout.
void convert_stage_rm(ForeignConversion& conversion) {
  convert_pairs(conversion, "stage", "reward", {.length = "cutoff_len", .default_length = 2048});
  conversion.set("", "data.too_long", "drop");
  conversion.lose("data.too_long", kPairsDropped);
  conversion.lose(
      "preference.loss",
      "the head there has a bias and a file of its own, value_head.safetensors; here it is score.weight, as "
      "transformers' classifiers have it");
}

void finish_llama_factory(ForeignConversion& conversion) {
  finish_hugging_face(conversion, "");
  convert_strategies(conversion);
  convert_template(conversion, "template");
  convert_betas(conversion, "optim_config.adamw_betas");
  if (const ConfigValue* disabled = conversion.find("disable_gradient_checkpointing"))
    if (!is_off(*disabled, ""))
      conversion.set("disable_gradient_checkpointing", "activation_checkpoint.mode", "none");
  if (conversion.has("train_dataset")) {
    convert_second_adapter(conversion);
  } else {
    convert_first_adapter(conversion);
  }
  std::string stage = conversion.text("stage");
  if (stage.empty()) stage = "sft";
  const bool is_reward = stage == "rm";
  const bool is_judged = stage == "kto";
  if (stage != "pt" && stage != "sft" && stage != "dpo" && !is_reward && !is_judged)
    conversion.refuse("stage", kOnlyPairs);
  if (is_reward) convert_stage_rm(conversion);
  if (is_judged)
    convert_stage_kto(conversion);
  else
    need_none_of(conversion, {"kto_chosen_weight", "kto_rejected_weight"}, "read only with stage: kto");
  const bool has_preferences = is_judged || (stage == "dpo" && convert_stage_dpo(conversion));
  const bool on_pairs = is_reward || has_preferences;
  convert_datasets(conversion, "", on_pairs);
  if (on_pairs) {
    need_none_of(conversion, {"packing", "neat_packing"}, "preference data are not packed there");
  } else {
    convert_llama_factory_packing(conversion, "", stage == "pt");
  }
  if (!has_preferences) {
    need_none_of(conversion,
                 {"pref_beta", "pref_ftx", "dpo_label_smoothing", "simpo_gamma", "ref_model",
                  "ref_model_adapters", "ref_model_quantization_bit", "pref_bco_weight", "ld_alpha"},
                 kOnlyPreferences);
    if (stage != "dpo") need_none_of(conversion, {"pref_loss"}, kOnlyPreferences);
  }
  const auto held_out = conversion.number("val_size");
  if (!held_out || *held_out == 0) return;
  if (*held_out < 1) return conversion.set("val_size", "data.validation_fraction", toml_float(*held_out));
  conversion.lose("val_size", "a number of samples; set data.validation_fraction to a share");
}

}  // namespace

void convert_llama_factory_packing(ForeignConversion& conversion, std::string_view prefix,
                                   bool is_pretraining) {
  const std::string packing = format("{}packing", prefix);
  const std::string neat = format("{}neat_packing", prefix);
  const ConfigValue* value = conversion.find(packing);
  const bool is_packed =
      conversion.is_true(neat) || (value == nullptr ? is_pretraining : !is_off(*value, ""));
  const std::string_view key = conversion.has(neat) ? neat : packing;
  // Rows of pre-training are cut from all text end to end.
  const std::string_view ours = !is_packed ? "none" : is_pretraining ? "concat" : "best_fit";
  if (conversion.has(key)) {
    conversion.set(key, "data.packing", std::string(ours));
  } else {
    conversion.set_default("data.packing", ours);
  }
  // It cuts questions and answers in proportion.
  if (!is_pretraining) conversion.set_default("data.too_long", "proportional");
}

const ForeignTrainer& llama_factory_trainer() {
  static const ForeignTrainer trainer{.name = "llama-factory",
                                      .title = "LLaMA-Factory",
                                      .keys = kLlamaFactoryKeys,
                                      .inherited = training_argument_keys(),
                                      .defaults = kLlamaFactoryDefaults,
                                      .finish = finish_llama_factory};
  return trainer;
}

}  // namespace stepforge
