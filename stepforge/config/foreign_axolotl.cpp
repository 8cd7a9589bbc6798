// SPDX-License-Identifier: Apache-2.0
// Axolotl.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_adapter.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/foreign_hugging_face.h"
#include "stepforge/config/foreign_preference.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kByEpochs = "saves, evaluations and logs count steps";
constexpr std::string_view kReadWithAdapter = "read only with an adapter";
constexpr std::string_view kNoExtraTokens = "not available yet: add them to the tokenizer's files";

constexpr auto kAxolotlKeys = std::to_array<ForeignKey>({
    {"base_model", "model.from", kModelFolder, model},
    {"base_model_config", "model.from", "the folder has its configuration", needless},
    {"base_model_ignore_patterns", "", "models are not downloaded", needless},
    {"model_type", "", "config.json of the model states it", needless},
    {"tokenizer_type", "", "the tokenizer's files state it", needless},
    {"tokenizer_config", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"tokenizer_use_fast", "", "there is one tokenizer", needless},
    {"tokenizer_legacy", "", "the tokenizer's files state it", needless},
    {"tokenizer_use_mistral_common", "", "the tokenizer's files state it", needless},
    {"tokenizer_save_jinja_files", "", "the template is kept with the run", needless},
    {"processor_type", "", "images, video and audio are not available yet", refused},
    {"is_llama_derived_model", "", "config.json of the model states it", needless},
    {"is_mistral_derived_model", "", "config.json of the model states it", needless},
    {"is_falcon_derived_model", "", "config.json of the model states it", needless},
    {"is_qwen_derived_model", "", "config.json of the model states it", needless},
    {"resize_token_embeddings_to_32x", "model.vocab_size", "a multiple of 32", lost},
    {"model_config.*", "", "keys of [model] must agree with the model", lost},
    {"special_tokens.pad_token", "", "padding has no token of its own", needless},
    {"special_tokens.*", "", "the tokenizer's files name them; change them there", lost},
    {"special_tokens", "tokenizer.special_tokens", "of a tokenizer that is trained", lost},
    {"tokens", "", kNoExtraTokens, lost},
    {"added_tokens_overrides.*", "", kNoExtraTokens, lost},
    {"eot_tokens", "", "the template and the tokenizer say what ends a message", needless},
    {"datasets", "data.sources", "one table { path = \"...\", format = \"...\" } per source", read},
    {"test_datasets", "data.validation", "one table { path = \"...\", format = \"...\" } per source", read},
    {"pretraining_dataset", "data.sources", kOneTablePerSource, read},
    {"chat_template", "data.chat_template", "a Jinja file, or a name such as \"chatml\"", read},
    {"chat_template_jinja", "data.chat_template", "the path of a Jinja file: write the text into one", lost},
    {"default_system_message", "", "not available yet: the template has the system message", lost},
    {"dataset_prepared_path", "data.cache_dir", "the cache is made by itself", needless},
    {"dataset_processes", "", "tokenization uses all cores", needless},
    {"dataset_num_proc", "", "tokenization uses all cores", needless},
    {"dataset_keep_in_memory", "", "text is memory-mapped", needless},
    {"skip_prepare_dataset", "", "the cache is made by itself", needless},
    {"shuffle_merged_datasets", "data.shuffle"},
    {"shuffle_before_merging_datasets", "", "rows are shuffled over all data sets", needless},
    {"dataset_exact_deduplication", "data.deduplicate"},
    {"push_dataset_to_hub", "", "not available yet: nothing is uploaded", lost},
    {"train_on_inputs", "data.sources", "loss_on = \"all\" in each source", read},
    {"sequence_len", "training.seq_len"},
    {"eval_sequence_len", "", "validation has rows of training.seq_len", needless},
    {"excess_length_strategy", "data.too_long", "\"drop\", \"cut\" or \"error\"", read},
    {"min_sample_len", "data.filter.min_words", "in words", lost},
    {"sample_packing", "data.packing", "\"best_fit\"", read},
    {"eval_sample_packing", "data.packing", "validation is packed as training", needless},
    {"sample_packing_group_size", "", "rows are packed over the whole data set", needless},
    {"sample_packing_bin_size", "", "rows are packed over the whole data set", needless},
    {"sample_packing_eff_est", "", "rows are packed over the whole data set", needless},
    {"multipack_real_batches", "", "documents of a row never see each other", needless},
    {"pad_to_sequence_len", "", "rows are always full", needless},
    {"max_packed_sequence_len", "", "rows have training.seq_len tokens", needless},
    {"total_num_tokens", "", "tokens are counted", needless},
    {"curriculum_sampling", "data.shuffle", "the opposite value", negate},
    {"val_set_size", "data.validation_fraction", "a fraction below 1", read},
    {"micro_batch_size", "training.local_batch_size", "", read},
    {"batch_size", "training.global_batch_size", "over all ranks", read},
    {"eval_batch_size", "", "validation has the rows of training.local_batch_size", needless},
    {"num_epochs", "training.epochs", "", read},
    {"optimizer", "optimizer.name", "", optimizer},
    {"lr_scheduler", "lr_scheduler.decay_type", "linear, sqrt, cosine, polynomial, inverse_sqrt or constant",
     decay},
    {"cosine_min_lr_ratio", "lr_scheduler.min_lr_factor"},
    {"cosine_constant_lr_ratio", "lr_scheduler.total_steps", "the steps until the rate is constant", lost,
     "0"},
    {"lr_div_factor", "", kNotAvailable, lost},
    {"eta_min", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"embedding_lr", "optimizer.param_groups", "a group with the pattern of the embedding", lost},
    {"embedding_lr_scale", "optimizer.param_groups", "a group with the pattern of the embedding", lost},
    {"lr_groups", "optimizer.param_groups", "one table { pattern, lr } per group", lost},
    {"gradient_checkpointing", "activation_checkpoint.mode", "\"full\"", when_true, "\"full\""},
    {"activation_offloading", "activation_checkpoint.mode", "recomputation saves the same memory", lost},
    {"layer_offloading", "parallelism.fsdp_cpu_offload", "", lost},
    {"saves_per_epoch", "checkpoint.interval", kByEpochs, lost, "0"},
    {"evals_per_epoch", "validation.freq", kByEpochs, lost, "0"},
    {"save_first_step", "", kNotAvailable, lost},
    {"early_stopping_patience", "training.early_stopping.patience"},
    {"loss_watchdog_threshold", "training.nonfinite", "not available yet for a threshold", lost},
    {"loss_watchdog_patience", "", "read only with loss_watchdog_threshold", needless},
    {"eval_table_size", "", "sampling.freq shows what the model writes", needless},
    {"eval_max_new_tokens", "", "sampling.freq shows what the model writes", needless},
    {"eval_causal_lm_metrics", "", kNotAvailable, lost},
    {"unfrozen_parameters", "model.freeze", "regular expressions of what is not trained", lost},
    {"strict", "", "unknown keys are always errors", needless},
    {"plugins", "", "the features of plug-ins have keys of their own", needless},
    {"liger_rope", "", kFusedKernels, needless},
    {"liger_rms_norm", "", kFusedKernels, needless},
    {"liger_rms_norm_gated", "", kFusedKernels, needless},
    {"liger_layer_norm", "", kFusedKernels, needless},
    {"liger_glu_activation", "", kFusedKernels, needless},
    {"liger_swiglu", "", kFusedKernels, needless},
    {"liger_cross_entropy", "", kFusedKernels, needless},
    {"liger_fused_linear_cross_entropy", "", kFusedKernels, needless},
    {"cut_cross_entropy", "", kFusedKernels, needless},
    {"chunked_cross_entropy", "training.loss_chunk", "chosen from the vocabulary", needless},
    {"attn_implementation", "", kFusedKernels, needless},
    {"flash_attention", "", kFusedKernels, needless},
    {"flash_attn_cross_entropy", "", kFusedKernels, needless},
    {"flash_attn_rms_norm", "", kFusedKernels, needless},
    {"flash_attn_fuse_qkv", "", kFusedKernels, needless},
    {"flash_attn_fuse_mlp", "", kFusedKernels, needless},
    {"fused_attn_kernel", "", kFusedKernels, needless},
    {"xformers_attention", "", kFusedKernels, needless},
    {"sdp_attention", "", kFusedKernels, needless},
    {"flex_attention", "", kFusedKernels, needless},
    {"flex_attn_compile_kwargs.*", "", kFusedKernels, needless},
    {"eager_attention", "", kFusedKernels, needless},
    {"s2_attention", "", kNotAvailable, lost},
    {"use_kernels", "", kFusedKernels, needless},
    {"use_scattermoe", "", kFusedKernels, needless},
    {"use_sonicmoe", "", kFusedKernels, needless},
    {"experts_implementation", "", kFusedKernels, needless},
    {"float32", "", "fp32 is the default", needless},
    {"bfloat16", "precision.compute", "\"bf16\"", when_true, "\"bf16\""},
    {"float16", "", "not available yet; precision.compute = \"bf16\" needs no loss scaling", lost},
    {"fp8", "", kNoQuantization, refused},
    {"qat.*", "", kNoQuantization, refused},
    {"quantization.*", "", kNoQuantization, refused},
    {"gptq", "", kNoQuantization, refused},
    {"gptq_groupsize", "", "read only with gptq", needless},
    {"gptq_model_v1", "", "read only with gptq", needless},
    {"load_in_4bit", "model.frozen_dtype", "\"nf4\"", read},
    {"load_in_8bit", "model.frozen_dtype", "\"int8\"", read},
    {"quantize_moe_experts", "", kNoQuantization, refused},
    {"model_quantization_config", "", kNoQuantization, refused},
    {"model_quantization_config_kwargs.*", "", "read only with model_quantization_config", needless},
    {"bnb_config_kwargs.bnb_4bit_quant_type", "model.frozen_dtype", "\"nf4\"", read},
    {"bnb_config_kwargs.bnb_4bit_use_double_quant", "model.double_quantization", "", read},
    {"bnb_config_kwargs.*", "", kTypeOfProducts, needless},
    {"adapter", "adapter.type", "\"lora\"", read},
    {"lora_model_dir", "adapter.from", "a folder of PEFT on this machine", read},
    {"peft.*", "adapter.init", kOnlyInitOfLora, lost},
    {"peft_init_lora_weights", "adapter.init", "\"pissa\" or \"gaussian\"", read},
    {"peft_layers_to_transform", "adapter.layers", "indices", read},
    {"peft_layers_pattern", "", "layers are named as in Hugging Face models", needless},
    {"peft_autocast_adapter_dtype", "", "adapters are kept in fp32", needless},
    {"lora_r", "adapter.rank", "", read},
    {"lora_alpha", "adapter.alpha", "", read},
    {"lora_dropout", "adapter.dropout", "", read},
    {"lora_target_modules", "adapter.targets", "names of modules", read},
    {"lora_target_linear", "adapter.targets", "\"all-linear\"", read},
    {"lora_target_parameters", "adapter.targets", "experts have no adapters", lost},
    {"lora_modules_to_save", "adapter.also_train", "names of modules", read},
    {"lora_fan_in_fan_out", "", "the model says how its matrices lie", needless},
    {"lora_mlp_kernel", "", kFusedKernels, needless},
    {"lora_qkv_kernel", "", kFusedKernels, needless},
    {"lora_o_kernel", "", kFusedKernels, needless},
    {"peft_use_dora", "adapter.type", "\"dora\"", read},
    {"peft_use_rslora", "adapter.rslora", "", read},
    {"loraplus_lr_ratio", "adapter.b_lr_ratio", "", read},
    {"loraplus_lr_embedding", "optimizer.param_groups", kEmbeddingRate, lost},
    {"relora", "", "adapters are not merged in training", refused},
    {"rl", "preference.loss", "dpo, ipo, simpo, orpo or kto", read},
    {"rl_beta", "preference.beta", "", read},
    {"dpo_beta", "preference.beta", "", read},
    {"orpo_alpha", "preference.beta", "", read},
    {"trl.beta", "preference.beta", "", read},
    {"dpo_loss_type", "preference.loss", "dpo, hinge or ipo", read},
    {"dpo_loss_weights", "preference.sft_weight", "of \"sft\" beside a loss of pairs", read},
    {"dpo_label_smoothing", "preference.label_smoothing", "", read},
    {"dpo_norm_loss", "preference.length_normalized", "", read},
    {"dpo_use_weighting", "", "all pairs have the same weight", refused},
    {"dpo_use_logits_to_keep", "", "logits of prompts are not computed", needless},
    {"dpo_use_liger_kernel", "", kFusedKernels, needless},
    {"dpo_padding_free", "", "rows are always full", needless},
    {"dpo_generate_during_eval", "", "sampling.freq shows what the model writes", needless},
    {"precompute_ref_log_probs", "", kReferenceOnce, needless},
    {"rl_adapter_ref_model", "", kOneReference, needless},
    {"rpo_alpha", "preference.sft_weight", "", read},
    {"cpo_alpha", "preference.sft_weight", "", read},
    {"simpo_gamma", "preference.margin", "", read},
    {"max_prompt_len", "data.too_long", kPairsDropped, lost},
    {"kto_desirable_weight", "preference.desirable_weight", "", read},
    {"kto_undesirable_weight", "preference.undesirable_weight", "", read},
    {"trl.*", "", "read only by methods that generate", needless},
    {"ebft.*", "", "read only with rl: ebft", needless},
    {"vllm.*", "", "read only by methods that generate", needless},
    {"reward_model", "preference.loss", "\"reward\"", read},
    {"center_rewards_coefficient", "preference.center_weight", "", read},
    {"process_reward_model", "", kOnlyPairs, refused},
    {"num_labels", "model.head", "\"score\" of 1", read},
    {"diffusion.*", "", "this method of training is not available yet", refused},
    {"kd_trainer", "", "this method of training is not available yet", refused},
    {"noisy_embedding_alpha", "", kNotAvailable, lost, "0"},
    {"neftune_noise_alpha", "", kNotAvailable, lost, "0"},
    {"fsdp_version", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"fsdp_final_state_dict_type", "", "checkpoints fit any number of ranks", needless},
    {"dp_shard_size", "parallelism.data_parallel_shard_degree"},
    {"dp_replicate_size", "parallelism.data_parallel_replicate_degree"},
    {"tensor_parallel_size", "parallelism.tensor_parallel_degree"},
    {"context_parallel_size", "parallelism.context_parallel_degree"},
    {"expert_parallel_size", "parallelism.expert_parallel_degree"},
    {"sequence_parallel_degree", "parallelism.context_parallel_degree"},
    {"heads_k_stride", "", "read only by its ring attention", needless},
    {"ring_attn_func", "parallelism.context_parallel_method", "\"ring\"", needless},
    {"ddp", "", "the program has its own launcher", needless},
    {"ddp_timeout", "comm.train_timeout", "in seconds", read},
    {"device_map", "", "the launcher places ranks", needless},
    {"max_memory", "", "`stepforge plan` says what fits", needless},
    {"gpu_memory_limit", "", "`stepforge plan` says what fits", needless},
    {"low_cpu_mem_usage", "", "weights are memory-mapped", needless},
    {"experimental_skip_move_to_device", "", "weights are read where they are needed", needless},
    {"torchdistx_path", "", "not needed by this program", needless},
    {"debug", "", "`stepforge data show --sample` shows what is learned", needless},
    {"wandb_project", "", kCurvesElsewhere, lost},
    {"wandb_entity", "", "read only with wandb_project", needless},
    {"wandb_watch", "", "read only with wandb_project", needless},
    {"wandb_name", "", "read only with wandb_project", needless},
    {"wandb_run_id", "", "read only with wandb_project", needless},
    {"wandb_log_model", "", "read only with wandb_project", needless},
    {"mlflow_tracking_uri", "", kCurvesElsewhere, lost},
    {"mlflow_experiment_name", "", "read only with mlflow_tracking_uri", needless},
    {"comet_project_name", "", kCurvesElsewhere, lost},
    {"use_tensorboard", "", kCurvesElsewhere, lost},
    {"trackio_project_name", "", kCurvesElsewhere, lost},
    {"trackio_run_name", "", "read only with trackio_project_name", needless},
    {"trackio_space_id", "", "read only with trackio_project_name", needless},
    {"auto_resume_from_checkpoints", "checkpoint.resume"},
    {"torch_compile", "", kFusedKernels, needless},
    {"use_swanlab", "", kCurvesElsewhere, lost},
    {"swanlab_*", "", "read only with use_swanlab", needless},
    {"use_wandb", "", kCurvesElsewhere, lost},
    {"tokens.*", "", kNoExtraTokens, lost},
    {"revision_of_model", "", "the folder has one revision", needless},
    {"hf_use_auth_token", "", "models are not downloaded", needless},
    {"adam_eps", "optimizer.eps"},
    {"torch_dtype", "precision.compute", "weights are always kept in fp32", needless},
    {"tiled_mlp", "", kFusedKernels, needless},
    {"streaming", "", "text is tokenized once and memory-mapped", needless},
    {"streaming_multipack_buffer_size", "", "rows are packed over the whole data set", needless},
    {"sample_packing_sequentially", "data.shuffle", "the opposite value", needless},
    {"relora_*", "", "read only with relora", needless},
    {"use_onebitllms", "", kNoQuantization, refused},
    {"reinit_weights", "", "without model.from the model is new", lost},
    {"lr_quadratic_warmup", "", "not available yet: the warm-up is linear", lost},
    {"llama4_linearized_experts", "", kFusedKernels, needless},
    {"freeze_mm_modules", "", "there is no vision tower", needless},
    {"use_ray", "", "use `stepforge launch --nproc N`", needless},
    {"ray_num_workers", "", "use `stepforge launch --nproc N`", needless},
    {"use_eaft", "", "this method of training is not available yet", refused},
});

constexpr auto kAxolotlDefaults = std::to_array<ForeignDefault>({
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.999"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.0"},
    {"training.max_norm", "1.0"},
    {"training.label_smoothing", "0.0"},
    {"training.seq_len", "512"},
    {"training.seed", "42"},
    {"lr_scheduler.decay_type", "cosine"},
    {"lr_scheduler.min_lr_factor", "0.0"},
    {"metrics.log_freq", "500"},
    {"checkpoint.interval", "500"},
    {"checkpoint.keep_latest_k", "4"},
    {"precision.compute", "fp32"},
    {"activation_checkpoint.mode", "none"},
});

std::string entry_text(const ConfigValue& entry, std::string_view key) {
  const ConfigValue* value = entry.find(key);
  return value == nullptr ? "" : value->text;
}

/// The key of a message's text according to message_property_mappings: "content", "value", or "" without it.
std::string content_key(const ConfigValue& entry) {
  const ConfigValue* mapping = entry.find("message_property_mappings");
  return mapping == nullptr ? "" : entry_text(*mapping, "content");
}

/// Whether the words of an entry's `roles` are those that messages and ShareGPT's turns have anyway.
bool has_usual_roles(const ConfigValue& roles) {
  constexpr std::string_view kUsual =
      "|user:user|user:human|assistant:assistant|assistant:gpt|system:system|tool:tool|";
  return std::ranges::all_of(roles.table, [&](const ConfigEntry& role) {
    const std::vector<std::string> words = names_in(role.value);
    return std::ranges::all_of(words, [&](const std::string& word) {
      return kUsual.find(format("|{}:{}|", role.key, word)) != std::string_view::npos;
    });
  });
}

/// Settings of an entry of `datasets` that a source does not have, as a list, or "".
std::string unread_of(const ConfigValue& entry) {
  constexpr std::string_view kRead =
      "|path|type|data_files|field|text_column|split|ds_type|trust_remote_code|";
  std::string unread;
  for (const ConfigEntry& option : entry.table) {
    if (kRead.find("|" + option.key + "|") != std::string_view::npos || is_off(option.value, "")) continue;
    if (option.key == "roles_to_train" && option.value.list.size() == 1 &&
        option.value.list[0].text == "assistant")
      continue;
    if (option.key == "train_on_eos" && option.value.text == "turn") continue;
    if (option.key == "field_messages" &&
        (option.value.text == "messages" || option.value.text == "conversations"))
      continue;
    if ((option.key == "field_chosen" && option.value.text == "chosen") ||
        (option.key == "field_rejected" && option.value.text == "rejected") ||
        (option.key == "roles" && entry.find("field_chosen") != nullptr && has_usual_roles(option.value)))
      continue;
    const std::string content = content_key(entry);
    if (option.key == "message_property_mappings" && (content == "content" || content == "value")) continue;
    unread += (unread.empty() ? "" : ", ") + option.key;
  }
  return unread;
}

/// The path of an entry of `datasets`.
std::string axolotl_path(const ConfigValue& entry) {
  std::string path = entry_text(entry, "path");
  const ConfigValue* files = entry.find("data_files");
  if (files != nullptr && !files->text.empty()) path = files->text;
  if (files != nullptr && files->list.size() == 1) path = files->list[0].text;
  if (const std::string split = entry_text(entry, "split");
      !split.empty() && split != "train" && split.find('[') == std::string::npos && files == nullptr)
    path = format("{}/**/{}*", path, split);
  return format("path = {}", toml_string(path));
}

/// Why an entry of pairs of answers is not read as format "preference", or "".
std::string unfit_pairs(const ConfigValue& entry) {
  const ConfigValue* type = entry.find("type");
  if (type != nullptr && type->kind == ConfigValue::Kind::table) return "type of its own";
  std::string name = type == nullptr ? "" : type->text;
  if (!name.empty() && name.find('.') == std::string::npos) name += ".default";
  // Both answers are whole conversations, or the prompt is one; or all are texts without a template.
  constexpr std::string_view kFit =
      "||passthrough.default|chat_template.default|chat_template.argilla_chat|chat_template.argilla"
      "|chatml.argilla_chat|llama3.argilla_chat|";
  if (kFit.find("|" + name + "|") == std::string_view::npos) return format("type {}", name);
  for (const auto& [field, names] : {std::pair("field_chosen", "||chosen|"),
                                     {"field_rejected", "||rejected|"},
                                     {"field_messages", "||messages|conversations|"}}) {
    const std::string given = entry_text(entry, field);
    if (std::string_view(names).find("|" + given + "|") == std::string_view::npos)
      return format("{} {}", field, given);
  }
  return "";
}

/// The same of judged answers, which are read if nothing renders them there: a prompt, a completion and a label.
std::string unfit_judged(const ConfigValue& entry) {
  const ConfigValue* type = entry.find("type");
  if (type == nullptr || type->text == "passthrough") return "";
  return type->kind == ConfigValue::Kind::table ? "type of its own" : format("type {}", type->text);
}

/// One table of `datasets`; `type` says how records are read.
std::string axolotl_source(const ConfigValue& entry, bool learns_all, bool is_pretraining) {
  std::string source = axolotl_path(entry);
  std::string type = entry_text(entry, "type");
  type = type.substr(0, type.find('.'));
  if (type == "chat_template" || entry.find("field_messages") != nullptr) {
    // Its default field is that of the messages format.
    const bool is_sharegpt =
        content_key(entry) == "value" ||
        (content_key(entry).empty() && entry_text(entry, "field_messages") == "conversations");
    source += format(", format = \"{}\"", is_sharegpt ? "sharegpt" : "messages");
  } else if (type == "sharegpt") {
    source += ", format = \"sharegpt\"";
  } else if (type == "alpaca") {
    source += ", format = \"alpaca\"";
  } else if (is_pretraining || type == "completion" || type == "pretrain") {
    std::string field = entry_text(entry, "field");
    if (field.empty()) field = entry_text(entry, "text_column");
    if (!field.empty() && field != "text") source += format(", field = {}", toml_string(field));
    return source;
  }
  return learns_all ? source + ", loss_on = \"all\"" : source;
}

void convert_axolotl_data(ForeignConversion& conversion, bool on_pairs) {
  const bool learns_all = conversion.is_true("train_on_inputs");
  const bool is_judged = conversion.config().preference.unpaired();
  if (on_pairs) need_none_of(conversion, {"train_on_inputs"}, kAnswersCount);
  for (const std::string_view key : {"datasets", "pretraining_dataset", "test_datasets"}) {
    const ConfigValue* value = conversion.find(key);
    if (value == nullptr) continue;
    const bool is_pretraining = key == "pretraining_dataset";
    const std::string_view ours = key == "test_datasets" ? "data.validation" : "data.sources";
    std::vector<std::string> sources;
    std::string unread;
    std::string unfit;
    if (value->kind == ConfigValue::Kind::text)
      sources.push_back(format("path = {}", toml_string(value->text)));
    for (const ConfigValue& entry : value->list) {
      sources.push_back(on_pairs
                            ? axolotl_path(entry) + format(", format = \"{}\"", preference_format(conversion))
                            : axolotl_source(entry, learns_all, is_pretraining));
      const std::string why = is_judged ? unfit_judged(entry) : on_pairs ? unfit_pairs(entry) : "";
      if (!why.empty()) {
        unfit += format("{}{} ({})", unfit.empty() ? "" : "; ", entry_text(entry, "path"), why);
        continue;
      }
      if (const std::string more = unread_of(entry); !more.empty())
        unread += format("{}{} ({})", unread.empty() ? "" : "; ", entry_text(entry, "path"), more);
    }
    conversion.set_sources(key, ours, sources, /*are_joined=*/true);
    if (!unread.empty()) conversion.lose(key, format("not translated of its entries: {}", unread));
    if (!unfit.empty())
      conversion.refuse(
          key, format("records of another form: {}; write {} as messages, or name the columns in a "
                      "dataset_info.json of LLaMA-Factory with {}",
                      unfit, is_judged ? "prompt and completion with a label" : "prompt, chosen and rejected",
                      is_judged ? "\"kto_tag\"" : "\"ranking\": true"));
  }
}

/// Types such as chatml.argilla_chat have a template in their name.
void convert_template_of_types(ForeignConversion& conversion) {
  const ConfigValue* datasets = conversion.find("datasets");
  if (datasets == nullptr) return;
  for (const ConfigValue& entry : datasets->list) {
    const std::string type = entry_text(entry, "type");
    const std::string name = type.substr(0, type.find('.'));
    if (name == "chatml" || name == "llama3")
      conversion.set("", "data.chat_template", toml_string(name), format("of the type {}", type));
  }
}

/// Names without a rank take that of PEFT.
void convert_axolotl_adapter(ForeignConversion& conversion) {
  constexpr ForeignAdapter adapter{.rank = "lora_r",
                                   .alpha = "lora_alpha",
                                   .dropout = "lora_dropout",
                                   .targets = "lora_target_modules",
                                   .all_linear = "lora_target_linear",
                                   .also_train = "lora_modules_to_save",
                                   .layers = "peft_layers_to_transform",
                                   .rslora = "peft_use_rslora",
                                   .dora = "peft_use_dora",
                                   .init = "peft_init_lora_weights",
                                   .b_lr_ratio = "loraplus_lr_ratio",
                                   .from = "lora_model_dir",
                                   .default_targets = R"(["q_proj", "v_proj"])"};
  const std::string type = conversion.text("adapter");
  if (type == "lora" || type == "qlora") {
    convert_lora(conversion, "adapter", adapter);
  } else {
    if (!type.empty()) conversion.refuse("adapter", kOnlyLora);
    need_no_lora(conversion, adapter, kReadWithAdapter);
    if (conversion.has("lora_model_dir")) conversion.need_nothing("lora_model_dir", kReadWithAdapter);
  }
  const bool four = conversion.is_true("load_in_4bit");
  const bool eight = conversion.is_true("load_in_8bit");
  if (four || eight) {
    convert_quantization(conversion, four ? "load_in_4bit" : "load_in_8bit", four ? 4 : 8);
  } else if (type == "qlora") {
    conversion.refuse("adapter", "qlora needs load_in_4bit there");
  } else {
    convert_quantization(conversion, "", 0);
  }
  convert_quantization_type(conversion, "bnb_config_kwargs.bnb_4bit_quant_type");
  convert_double_quantization(conversion, "bnb_config_kwargs.bnb_4bit_use_double_quant", type == "qlora");
}

/// The first of several keys for one number that the file has; the others need nothing.
std::string_view first_of(ForeignConversion& conversion, std::initializer_list<std::string_view> keys) {
  std::string_view first;
  for (const std::string_view key : keys) {
    if (!conversion.has(key)) continue;
    if (first.empty()) {
      first = key;
    } else {
      conversion.need_nothing(key, format("{} is set, and wins there too", first));
    }
  }
  return first;
}

/// Of `reward_model: true`, which has a score. Returns whether the file trains one.
bool convert_axolotl_reward(ForeignConversion& conversion) {
  const bool is_reward = conversion.is_true("reward_model");
  if (const auto labels = conversion.number("num_labels"); labels && (!is_reward || *labels != 1))
    conversion.refuse("num_labels",
                      "of classifiers only reward models are trained, with reward_model: true and one label");
  if (!is_reward) {
    need_none_of(conversion, {"center_rewards_coefficient"}, "read only with reward_model: true");
    return false;
  }
  convert_pairs(conversion, "reward_model", "reward",
                {.dropout = "lora_dropout", .length = "sequence_len", .default_length = 512});
  if (const auto weight = conversion.number("center_rewards_coefficient"))
    conversion.set("center_rewards_coefficient", "preference.center_weight", toml_float(*weight));
  return true;
}

/// Of `rl: kto`.
bool convert_axolotl_judged(ForeignConversion& conversion) {
  convert_pairs(conversion, "rl", "kto",
                {.beta = first_of(conversion, {"trl.beta", "rl_beta"}),
                 .desirable = "kto_desirable_weight",
                 .undesirable = "kto_undesirable_weight",
                 .dropout = "lora_dropout",
                 .length = "sequence_len",
                 .default_length = 512});
  need_none_of(conversion,
               {"orpo_alpha", "dpo_beta", "dpo_loss_type", "dpo_loss_weights", "dpo_label_smoothing",
                "dpo_norm_loss", "rpo_alpha", "cpo_alpha", "simpo_gamma"},
               "not read with rl: kto");
  return true;
}

/// Returns whether the file trains on pairs or judged answers.
bool convert_axolotl_pairs(ForeignConversion& conversion) {
  const std::string method = conversion.text("rl");
  const bool is_dpo = method == "dpo" || method == "ipo";
  const bool is_reward = convert_axolotl_reward(conversion);
  if (method == "kto" && !is_reward) return convert_axolotl_judged(conversion);
  need_none_of(conversion, {"kto_desirable_weight", "kto_undesirable_weight"}, "read only with rl: kto");
  if (is_reward || (!is_dpo && method != "orpo" && method != "simpo")) {
    if (!method.empty())
      conversion.refuse("rl",
                        is_reward ? "a run has one loss of pairs, and reward_model is set" : kOnlyPairs);
    need_none_of(conversion,
                 {"trl.beta", "rl_beta", "orpo_alpha", "dpo_beta", "dpo_loss_type", "dpo_loss_weights",
                  "dpo_label_smoothing", "dpo_norm_loss", "rpo_alpha", "cpo_alpha", "simpo_gamma"},
                 "read only by losses of pairs");
    return is_reward;
  }
  const ForeignPairs pairs{.beta = first_of(conversion, {"trl.beta", "rl_beta", "orpo_alpha", "dpo_beta"}),
                           .label_smoothing = "dpo_label_smoothing",
                           .margin = "simpo_gamma",
                           .dropout = "lora_dropout",
                           .length = "sequence_len",
                           .default_length = 512};
  if (method == "dpo") {
    if (!convert_dpo_losses(conversion, "dpo_loss_type", "dpo_loss_weights", pairs)) return false;
    if (conversion.is_true("dpo_norm_loss"))
      conversion.set("dpo_norm_loss", "preference.length_normalized", "true");
  } else {
    convert_pairs(conversion, "rl", method, pairs);
    need_none_of(conversion, {"dpo_loss_type", "dpo_loss_weights", "dpo_norm_loss"},
                 "read only with rl: dpo");
  }
  const std::string_view weight = method == "simpo" ? "cpo_alpha" : "rpo_alpha";
  if (method != "orpo") convert_sft_weight(conversion, weight);
  if (method == "simpo") conversion.set_default("preference.sft_weight", "1");
  for (const std::string_view other : {"cpo_alpha", "rpo_alpha"})
    if (method == "orpo" || other != weight)
      need_none_of(conversion, {other}, format("not read with rl: {}", method));
  if (method == "orpo")
    conversion.lose("preference.sft_weight",
                    "the cross-entropy is that of the answers; there prompts count too");
  return true;
}

void finish_axolotl(ForeignConversion& conversion) {
  convert_axolotl_adapter(conversion);
  const bool on_pairs = convert_axolotl_pairs(conversion);
  convert_length(conversion, "max_steps", "num_epochs", 1);
  // Its default warm-up is 3 % of the steps, at most 100.
  if (!conversion.has("warmup_steps") && !conversion.has("warmup_ratio")) {
    conversion.set_default("lr_scheduler.warmup_ratio", "0.03");
  } else {
    convert_warmup(conversion, "warmup_steps", "warmup_ratio");
  }
  const bool has_total = conversion.has("batch_size") && !conversion.has("gradient_accumulation_steps");
  convert_batch(conversion, "micro_batch_size", 1, "gradient_accumulation_steps", 1);
  if (has_total) {
    conversion.set("batch_size", "training.global_batch_size",
                   number_text(conversion.number("batch_size").value_or(1)));
  } else if (conversion.has("batch_size")) {
    conversion.need_nothing("batch_size", "gradient_accumulation_steps is set");
  }
  finish_trainer_arguments(conversion, "");
  convert_strategies(conversion);
  convert_min_lr(conversion, "eta_min");
  convert_axolotl_data(conversion, on_pairs);
  convert_template(conversion, "chat_template");
  if (on_pairs) convert_template_of_types(conversion);
  const bool is_pretraining = conversion.has("pretraining_dataset");
  if (on_pairs) {
    need_none_of(conversion, {"sample_packing"}, "preference data are not packed there");
  } else if (const ConfigValue* packing = conversion.find("sample_packing")) {
    conversion.set("sample_packing", "data.packing",
                   is_off(*packing, "") ? "none"
                   : is_pretraining     ? "concat"
                                        : "best_fit");
  } else {
    conversion.set_default("data.packing", is_pretraining ? "concat" : "none");
  }
  const std::string strategy = conversion.text("excess_length_strategy");
  if (on_pairs && strategy == "truncate") {
    conversion.set("", "data.too_long", "drop");
    conversion.lose("excess_length_strategy", kPairsDropped);
  } else if (!strategy.empty()) {
    conversion.set("excess_length_strategy", "data.too_long",
                   strategy == "truncate" ? "cut"
                   : strategy == "raise"  ? "error"
                                          : strategy);
  } else if (!is_pretraining) {
    conversion.set_default("data.too_long", "drop");
  }
  const auto held_out = conversion.number("val_set_size");
  if (held_out && *held_out > 0 && *held_out < 1) {
    conversion.set("val_set_size", "data.validation_fraction", toml_float(*held_out));
  } else if (held_out && *held_out >= 1) {
    conversion.lose("val_set_size", "a number of rows; set data.validation_fraction to a share");
  }
}

}  // namespace

const ForeignTrainer& axolotl_trainer() {
  static const ForeignTrainer trainer{.name = "axolotl",
                                      .title = "Axolotl",
                                      .keys = kAxolotlKeys,
                                      .inherited = training_argument_keys(),
                                      .defaults = kAxolotlDefaults,
                                      .finish = finish_axolotl};
  return trainer;
}

}  // namespace stepforge
