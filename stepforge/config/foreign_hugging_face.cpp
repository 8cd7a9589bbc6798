// SPDX-License-Identifier: Apache-2.0
// Hugging Face TrainingArguments; TRL and the alignment-handbook, which add data and models to them.
#include "stepforge/config/foreign_hugging_face.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_adapter.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/foreign_preference.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kNoFp16 = "not available yet; precision.compute = \"bf16\" needs no loss scaling";
constexpr std::string_view kNotOnHub = "not available yet: nothing is uploaded";
constexpr std::string_view kEverythingInRunDir = "everything is written to run_dir";

}  // namespace

constexpr auto kTrainingArguments = std::to_array<ForeignKey>({
    {"output_dir", "run_dir"},
    {"overwrite_output_dir", "checkpoint.resume", "a run continues by itself; another run_dir begins anew",
     needless},
    {"do_train", "", "`stepforge train` trains", needless},
    {"do_eval", "validation.freq", "or `stepforge eval`", needless},
    {"do_predict", "", "not available yet; `stepforge generate` continues prompts", lost},
    {"predict_with_generate", "", "not available yet; `stepforge generate` continues prompts", lost},
    {"per_device_train_batch_size", "training.local_batch_size", "", read},
    {"per_device_eval_batch_size", "", "validation has the rows of training.local_batch_size", needless},
    {"eval_accumulation_steps", "", "validation keeps no outputs", needless},
    {"gradient_accumulation_steps", "training.global_batch_size",
     "local_batch_size x ranks x accumulation steps", read},
    {"auto_find_batch_size", "", "not available yet; `stepforge plan` says what fits", lost},
    {"learning_rate", "optimizer.lr"},
    {"weight_decay", "optimizer.weight_decay"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_epsilon", "optimizer.eps"},
    {"max_grad_norm", "training.max_norm"},
    {"num_train_epochs", "training.epochs", "", read},
    {"max_steps", "training.steps", "", read},
    {"lr_scheduler_type", "lr_scheduler.decay_type",
     "linear, sqrt, cosine, polynomial, inverse_sqrt or constant", decay},
    {"lr_scheduler_kwargs.min_lr", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"lr_scheduler_kwargs.min_lr_rate", "lr_scheduler.min_lr_factor"},
    {"lr_scheduler_kwargs.num_cycles", "lr_scheduler.cycles"},
    {"lr_scheduler_kwargs.power", "lr_scheduler.power"},
    {"warmup_ratio", "lr_scheduler.warmup_ratio", "", read},
    {"warmup_steps", "lr_scheduler.warmup_steps", "", read},
    {"log_level", "", "messages of all levels are short", needless},
    {"log_level_replica", "", "rank 0 logs to the terminal, all ranks to files", needless},
    {"log_on_each_node", "", "rank 0 logs to the terminal, all ranks to files", needless},
    {"logging_steps", "metrics.log_freq", "", read},
    {"logging_first_step", "", "the first step is always logged", needless},
    {"logging_dir", "", kEverythingInRunDir, needless},
    {"logging_strategy", "metrics.log_freq", "a number of steps", lost, "steps"},
    {"logging_nan_inf_filter", "training.nonfinite", "a step that is not finite is never hidden", needless},
    {"save_strategy", "checkpoint.enable", "true or false", read},
    {"save_steps", "checkpoint.interval", "", read},
    {"save_total_limit", "checkpoint.keep_latest_k", "at least 2", read},
    {"save_safetensors", "", "weights are safetensors", needless},
    {"save_on_each_node", "", "run_dir is on all hosts or on one", needless},
    {"save_only_model", "", "not available yet: checkpoints hold all that a resume needs", lost},
    {"eval_strategy", "validation.freq", "a number of steps", read},
    {"evaluation_strategy", "validation.freq", "a number of steps", read},
    {"eval_steps", "validation.freq", "", read},
    {"eval_delay", "", kNotAvailable, lost, "0"},
    {"eval_on_start", "", kNotAvailable, lost},
    {"data_seed", "data.seed"},
    {"seed", "training.seed", "and data.seed", read},
    {"bf16", "precision.compute", "\"bf16\"", when_true, "\"bf16\""},
    {"bf16_full_eval", "", "validation computes as training does", needless},
    {"fp16", "", kNoFp16, lost},
    {"fp16_full_eval", "", "validation computes as training does", needless},
    {"tf32", "", "not available yet: fp32 is computed in full", lost},
    {"gradient_checkpointing", "activation_checkpoint.mode", "\"full\"", when_true, "\"full\""},
    {"gradient_checkpointing_kwargs.*", "", "recomputation gives the same bits", needless},
    {"use_reentrant_gc", "", "recomputation gives the same bits", needless},
    {"dataloader_num_workers", "", "text is tokenized once and memory-mapped", needless},
    {"dataloader_pin_memory", "", "text is tokenized once and memory-mapped", needless},
    {"dataloader_prefetch_factor", "data.prefetch", "in batches", needless},
    {"dataloader_persistent_workers", "", "text is tokenized once and memory-mapped", needless},
    {"dataloader_drop_last", "data.epoch_remainder", "\"smaller_step\" fills the last step of an epoch",
     lost},
    {"preprocessing_num_workers", "", "tokenization uses all cores", needless},
    {"remove_unused_columns", "", "only the named fields are read", needless},
    {"ddp_timeout", "comm.train_timeout", "in seconds", read},
    {"ddp_find_unused_parameters", "", "all weights have a gradient", needless},
    {"ddp_bucket_cap_mb", "", "gradients are sent block by block", needless},
    {"local_rank", "", "the launcher says it", needless},
    {"no_cuda", "training.device", "", read},
    {"use_cpu", "training.device", "", read},
    {"optim", "optimizer.name", "", optimizer},
    {"optim_args", "", kNotAvailable, lost},
    {"optim_target_modules", "", "low-rank optimizers are not available yet", lost},
    {"resume_from_checkpoint", "checkpoint.load_step",
     "a run continues by itself; load_step chooses a checkpoint", lost, "true|latest|auto"},
    {"report_to", "", kCurvesElsewhere, lost},
    {"run_name", "run_dir", "the folder names the run", needless},
    {"load_best_model_at_end", "checkpoint.keep_best"},
    {"metric_for_best_model", "checkpoint.keep_best", "by the validation loss", lost, "loss|eval_loss"},
    {"greater_is_better", "", "read only with a best model", needless},
    {"label_smoothing_factor", "training.label_smoothing"},
    {"neftune_noise_alpha", "", kNotAvailable, lost, "0"},
    {"average_tokens_across_devices", "training.loss_aggregation", "\"token_mean\", the default", needless},
    {"deepspeed", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"fsdp", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"fsdp_config", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"fsdp_config.*", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"accelerator_config.*", "", "the program has its own launcher", needless},
    {"torch_compile", "", kFusedKernels, needless},
    {"torch_compile_backend", "", kFusedKernels, needless},
    {"torch_compile_mode", "", kFusedKernels, needless},
    {"use_liger_kernel", "", kFusedKernels, needless},
    {"include_tokens_per_second", "", "the speed is always logged", needless},
    {"include_num_input_tokens_seen", "", "tokens are always counted", needless},
    {"disable_tqdm", "metrics.status_line", "shown only on a terminal", needless},
    {"skip_memory_metrics", "", "the peak of memory is always logged", needless},
    {"push_to_hub", "", kNotOnHub, lost},
    {"hub_model_id", "", "read only with push_to_hub", needless},
    {"hub_strategy", "", "read only with push_to_hub", needless},
    {"hub_model_revision", "", "read only with push_to_hub", needless},
    {"hub_private_repo", "", "read only with push_to_hub", needless},
    {"hub_token", "", "read only with push_to_hub", needless},
    {"group_by_length", "data.group_by_length"},
    {"length_column_name", "", "lengths are counted", needless},
    {"full_determinism", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     lost},
    {"ignore_data_skip", "checkpoint.load.data", "the opposite value", negate},
    {"trust_remote_code", "", "no code of a model is run", needless},
});

namespace {

constexpr auto kTrainingDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "5e-5"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.999"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.0"},
    {"training.max_norm", "1.0"},
    {"training.label_smoothing", "0.0"},
    {"training.seed", "42"},
    {"lr_scheduler.decay_type", "linear"},
    {"lr_scheduler.min_lr_factor", "0.0"},
    {"lr_scheduler.warmup_steps", "0"},
    {"metrics.log_freq", "500"},
    {"checkpoint.interval", "500"},
    {"checkpoint.keep_latest_k", "0"},
    {"precision.compute", "fp32"},
    {"activation_checkpoint.mode", "none"},
});

void finish_training_arguments(ForeignConversion& conversion) {
  finish_hugging_face(conversion, "");
  convert_strategies(conversion);
}

// TRL's SFTConfig, DPOConfig, CPOConfig, ORPOConfig and RewardConfig, and the alignment-handbook.
constexpr auto kTrlKeys = std::to_array<ForeignKey>({
    {"model_name_or_path", "model.from", kModelFolder, model},
    {"model_revision", "", "the folder has one revision", needless},
    {"torch_dtype", "precision.compute", "weights are always kept in fp32", needless},
    {"dtype", "precision.compute", "weights are always kept in fp32", needless},
    {"attn_implementation", "", kFusedKernels, needless},
    {"use_cache", "", "there is no cache in training", needless},
    {"tokenizer_name_or_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"chat_template", "data.chat_template", "the path of a Jinja file: write the text into one", lost},
    {"chat_template_path", "data.chat_template"},
    {"eos_token", "", "the end of a text is that of the tokenizer; change it in tokenizer_config.json", lost},
    {"pad_token", "", "padding has no token of its own", needless},
    {"dataset_name", "data.sources", "the path of a file or folder", read},
    {"dataset_config", "data.sources", "the path of a file or folder", read},
    {"dataset_train_split", "data.sources", "the path of the files of this split", read},
    {"dataset_test_split", "data.validation", "the path of the files of this split", read},
    {"dataset_mixture.datasets", "data.sources", kOneTablePerSource, read},
    {"dataset_mixture.seed", "data.seed"},
    {"dataset_mixture.test_split_size", "data.validation_fraction", "a fraction of the documents", read},
    {"dataset_mixer.*", "data.sources", kOneTablePerSource, read},
    {"dataset_splits", "data.sources", "the path of the files of this split", lost},
    {"dataset_text_field", "data.sources", "field = \"...\" in each source", read},
    {"dataset_num_proc", "", "tokenization uses all cores", needless},
    {"dataset_batch_size", "", "tokenization uses all cores", needless},
    {"dataset_kwargs.*", "", "the template decides which special tokens a text has", needless},
    {"max_seq_length", "training.seq_len"},
    {"max_length", "training.seq_len"},
    {"packing", "data.packing", "\"best_fit\" or \"none\"", read},
    {"eval_packing", "data.packing", "validation is packed as training", needless},
    {"packing_strategy", "data.packing", "\"best_fit\"", read},
    {"padding_free", "", "documents of a row never see each other", needless},
    {"assistant_only_loss", "data.sources", "loss_on = \"assistant\" or \"all\" in each source", read},
    {"completion_only_loss", "data.sources", "loss_on = \"assistant\" or \"all\" in each source", read},
    {"loss_type", "preference.loss", "dpo, hinge, ipo, cpo, simpo or kto", read},
    {"loss_weights", "preference.sft_weight", "of \"sft\" beside a loss of pairs", read},
    {"beta", "preference.beta", "", read},
    {"label_smoothing", "preference.label_smoothing", "of pairs; training.label_smoothing of single texts",
     read},
    {"simpo_gamma", "preference.margin", "", read},
    {"cpo_alpha", "preference.sft_weight", "", read},
    {"rpo_alpha", "preference.sft_weight", "", read},
    {"center_rewards_coefficient", "preference.center_weight", "", read},
    {"ld_alpha", "", kOtherDivergence, refused, "1"},
    {"f_divergence_type", "", kOtherDivergence, refused, "reverse_kl"},
    {"f_alpha_divergence_coef", "", "read only with f_divergence_type", needless},
    {"use_weighting", "", "all pairs have the same weight", refused},
    {"discopop_tau", "", "read only with loss_type: discopop", needless},
    {"reference_free", "", "the loss without a reference is preference.loss = \"cpo\" with sft_weight = 0",
     refused},
    {"sync_ref_model", "", kOneReference, refused},
    {"ref_model_mixup_alpha", "", "read only with sync_ref_model", needless},
    {"ref_model_sync_steps", "", "read only with sync_ref_model", needless},
    {"ref_model_name_or_path", "preference.reference", kReferenceFolder, read},
    {"ref_model_init_kwargs.*", "", kReferenceHeld, needless},
    {"force_use_ref_model", "", kOneReference, needless},
    {"model_adapter_name", "", "there is one adapter", needless},
    {"ref_adapter_name", "", kOneReference, refused},
    {"precompute_ref_log_probs", "", kReferenceOnce, needless},
    {"precompute_ref_batch_size", "", kReferenceOnce, needless},
    {"max_prompt_length", "data.too_long", kPairsDropped, lost},
    {"max_completion_length", "data.too_long", kPairsDropped, lost},
    {"truncation_mode", "data.too_long", "\"drop\", \"cut\" or \"error\"", lost},
    {"disable_dropout", "adapter.dropout", "0", read},
    {"generate_during_eval", "", "sampling.freq shows what the model writes", needless},
    {"is_encoder_decoder", "", "only decoders are trained", refused},
    {"padding_value", "", "padding has no token of its own", needless},
    {"label_pad_token_id", "", "padding has no token of its own", needless},
    {"pad_to_multiple_of", "", "rows are always full", needless},
    {"use_logits_to_keep", "", "logits of prompts are not computed", needless},
    {"enable_cpu_affinity", "", "threads are bound to the cores of their rank", needless},
    {"use_peft", "adapter.type", "\"lora\"", read},
    {"lora_r", "adapter.rank", "", read},
    {"lora_alpha", "adapter.alpha", "", read},
    {"lora_dropout", "adapter.dropout", "", read},
    {"lora_target_modules", "adapter.targets", "names of modules, or \"all-linear\"", read},
    {"lora_target_parameters", "adapter.targets", "experts have no adapters", lost},
    {"lora_modules_to_save", "adapter.also_train", "names of modules", read},
    {"lora_task_type", "preference.loss", "\"reward\" of SEQ_CLS", read},
    {"use_rslora", "adapter.rslora", "", read},
    {"use_dora", "adapter.type", "\"dora\"", read},
    {"load_in_4bit", "model.frozen_dtype", "\"nf4\"", read},
    {"load_in_8bit", "model.frozen_dtype", "\"int8\"", read},
    {"use_bnb_nested_quant", "model.double_quantization", "", read},
    {"bnb_4bit_quant_type", "model.frozen_dtype", "\"nf4\"", read},
    {"num_generations", "", kOnlyPairs, refused},
    {"reward_model_path", "", kOnlyPairs, refused},
    {"desirable_weight", "preference.desirable_weight", "", read},
    {"undesirable_weight", "preference.undesirable_weight", "", read},
});

// Defaults of SFTConfig; gradient_checkpointing and bf16 are on since version 0.20.
constexpr auto kTrlDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "2e-5"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.999"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.0"},
    {"training.max_norm", "1.0"},
    {"training.label_smoothing", "0.0"},
    {"training.seq_len", "1024"},
    {"training.seed", "42"},
    {"lr_scheduler.decay_type", "linear"},
    {"lr_scheduler.min_lr_factor", "0.0"},
    {"lr_scheduler.warmup_steps", "0"},
    {"metrics.log_freq", "10"},
    {"checkpoint.interval", "500"},
    {"checkpoint.keep_latest_k", "0"},
    {"precision.compute", "bf16"},
    {"activation_checkpoint.mode", "full"},
    {"data.packing", "none"},
});

/// The alignment-handbook: tables of id, config, split, columns and weight, which is the share of the rows that is taken.
void convert_mixture(ForeignConversion& conversion, std::string_view options) {
  const ConfigValue* mixture = conversion.find("dataset_mixture.datasets");
  if (mixture == nullptr) return;
  std::vector<std::string> sources;
  std::string shares;
  for (const ConfigValue& entry : mixture->list) {
    const ConfigValue* id = entry.find("id");
    if (id == nullptr) continue;
    std::string path = id->text;
    // A split of the Hub is a group of files: its name is part of theirs.
    if (const ConfigValue* split = entry.find("split"); split != nullptr && !split->text.empty())
      path = format("{}/**/{}*", path, split->text);
    sources.push_back(format("path = {}{}", toml_string(path), options));
    const auto weight = number_of(entry.find("weight"));
    if (weight && *weight != 1) shares += format("{}{}: {}", shares.empty() ? "" : ", ", id->text, *weight);
  }
  conversion.set_sources("dataset_mixture.datasets", "data.sources", sources, /*are_joined=*/true);
  if (!shares.empty())
    conversion.lose(
        "dataset_mixture.datasets",
        format("weight is the share of the rows that is taken, and all are ({}); in a list without "
               "combine, epochs = 0.5 takes half",
               shares));
}

void convert_trl_adapter(ForeignConversion& conversion) {
  constexpr ForeignAdapter adapter{.rank = "lora_r",
                                   .alpha = "lora_alpha",
                                   .dropout = "lora_dropout",
                                   .targets = "lora_target_modules",
                                   .also_train = "lora_modules_to_save",
                                   .rslora = "use_rslora",
                                   .dora = "use_dora",
                                   .default_rank = 16,
                                   .default_alpha = 32,
                                   .default_dropout = 0.05,
                                   .default_targets = R"(["q_proj", "v_proj"])"};
  if (conversion.is_true("use_peft")) {
    convert_lora(conversion, "use_peft", adapter);
  } else {
    need_no_lora(conversion, adapter, "read only with use_peft");
  }
  const bool four = conversion.is_true("load_in_4bit");
  const bool eight = conversion.is_true("load_in_8bit");
  if (four || eight) {
    convert_quantization(conversion, four ? "load_in_4bit" : "load_in_8bit", four ? 4 : 8);
    convert_quantization_type(conversion, "bnb_4bit_quant_type");
  } else {
    convert_quantization(conversion, "", 0);
    if (conversion.has("bnb_4bit_quant_type"))
      conversion.need_nothing("bnb_4bit_quant_type", "read only with load_in_4bit");
  }
  convert_double_quantization(conversion, "use_bnb_nested_quant", false);
}

bool has_any(const ForeignConversion& conversion, std::initializer_list<std::string_view> keys) {
  return std::ranges::any_of(keys, [&](std::string_view key) { return conversion.has(key); });
}

/// A file does not name its trainer: keys and losses do that only one of them has.
enum class TrlMethod : uint8_t { texts, dpo, cpo, reward, kto, other };

TrlMethod trl_method(ForeignConversion& conversion, const std::vector<std::string>& losses) {
  if (has_any(conversion, {"num_generations", "reward_model_path"})) return TrlMethod::other;
  if (conversion.text("lora_task_type") == "SEQ_CLS" || conversion.has("center_rewards_coefficient"))
    return TrlMethod::reward;
  const std::string loss = losses.empty() ? "" : losses.front();
  if (loss == "kto" || loss == "apo_zero_unpaired" ||
      has_any(conversion, {"desirable_weight", "undesirable_weight"}))
    return TrlMethod::kto;
  if (loss == "simpo" || loss == "alphapo" || has_any(conversion, {"cpo_alpha", "simpo_gamma"}))
    return TrlMethod::cpo;
  if (loss == "nll" || loss == "dft" || loss == "chunked_nll") return TrlMethod::texts;
  const bool is_dpo =
      !loss.empty() ||
      has_any(conversion, {"beta", "label_smoothing", "rpo_alpha", "reference_free", "sync_ref_model",
                           "ref_model_name_or_path", "max_prompt_length", "precompute_ref_log_probs"});
  return is_dpo ? TrlMethod::dpo : TrlMethod::texts;
}

void convert_trl_dpo(ForeignConversion& conversion, const ForeignPairs& pairs) {
  if (!convert_dpo_losses(conversion, "loss_type", "loss_weights", pairs)) return;
  convert_sft_weight(conversion, "rpo_alpha");
  if (conversion.is_set("preference.label_smoothing") && conversion.config().preference.label_smoothing > 0)
    conversion.set("label_smoothing", "preference.label_smoothing",
                   toml_float(conversion.config().preference.label_smoothing),
                   "since version 0.29 TRL ignores it for this loss");
  convert_reference(conversion, "ref_model_name_or_path", "model_name_or_path");
  if (!has_any(conversion, {"loss_type", "label_smoothing", "rpo_alpha", "reference_free", "sync_ref_model",
                            "ref_model_name_or_path", "precompute_ref_log_probs"}))
    conversion.lose("preference.loss",
                    "the file does not name its trainer, and the loss is that of DPOTrainer; for ORPOTrainer "
                    "it is \"orpo\", and for CPOTrainer \"cpo\"");
}

void convert_trl_cpo(ForeignConversion& conversion, const std::vector<std::string>& losses,
                     const ForeignPairs& pairs) {
  const std::string loss = losses.empty() ? "sigmoid" : losses.front();
  if (loss != "sigmoid" && loss != "simpo")
    return conversion.refuse("loss_type",
                             "of CPOTrainer's losses sigmoid and simpo are available; preference.loss "
                             "hinge and ipo compare with a reference");
  convert_pairs(conversion, conversion.has("loss_type") ? "loss_type" : "", loss == "simpo" ? "simpo" : "cpo",
                pairs);
  convert_sft_weight(conversion, "cpo_alpha");
  if (loss == "simpo") conversion.set_default("preference.sft_weight", "1");
  need_none_of(conversion, {"loss_weights", "rpo_alpha", "ref_model_name_or_path"},
               "CPOTrainer does not read it");
}

void convert_trl_reward(ForeignConversion& conversion, const ForeignPairs& pairs) {
  const std::string_view center = "center_rewards_coefficient";
  convert_pairs(conversion, conversion.has(center) ? center : "lora_task_type", "reward",
                {.dropout = pairs.dropout, .length = pairs.length, .default_length = pairs.default_length});
  if (const auto weight = conversion.number(center))
    conversion.set(center, "preference.center_weight", toml_float(*weight));
  conversion.set_default("optimizer.lr", "1e-4");
  need_none_of(conversion,
               {"beta", "label_smoothing", "loss_type", "loss_weights", "rpo_alpha", "cpo_alpha",
                "simpo_gamma", "ref_model_name_or_path", "desirable_weight", "undesirable_weight"},
               "RewardTrainer does not read it");
}

void convert_trl_kto(ForeignConversion& conversion, const std::vector<std::string>& losses,
                     const ForeignPairs& pairs) {
  const std::string loss = losses.empty() ? "kto" : losses.front();
  if (loss != "kto" && loss != "apo_zero_unpaired") {
    conversion.refuse("loss_type", "of KTOTrainer's losses kto and apo_zero_unpaired are available");
    return need_none_of(conversion,
                        {"beta", "desirable_weight", "undesirable_weight", "ref_model_name_or_path"},
                        "its loss is refused");
  }
  convert_pairs(conversion, losses.empty() ? "" : "loss_type", loss,
                {.beta = pairs.beta,
                 .desirable = "desirable_weight",
                 .undesirable = "undesirable_weight",
                 .dropout = pairs.dropout,
                 .length = pairs.length,
                 .default_length = pairs.default_length});
  convert_reference(conversion, "ref_model_name_or_path", "model_name_or_path");
  need_none_of(conversion, {"label_smoothing", "loss_weights", "rpo_alpha", "cpo_alpha", "simpo_gamma"},
               "KTOTrainer does not read it");
}

/// Returns whether the file trains on pairs or judged answers.
bool convert_trl_pairs(ForeignConversion& conversion) {
  ForeignPairs pairs{.beta = "beta",
                     .label_smoothing = "label_smoothing",
                     .margin = "simpo_gamma",
                     .dropout = "lora_dropout",
                     .length = "max_length",
                     .default_length = 1024};
  const ConfigValue* given = conversion.find("loss_type");
  const std::vector<std::string> losses = given == nullptr ? std::vector<std::string>() : names_in(*given);
  const TrlMethod method = trl_method(conversion, losses);
  if (method == TrlMethod::texts && !losses.empty()) {
    if (losses.front() == "nll") {
      conversion.switch_off("loss_type");
    } else {
      conversion.lose("loss_type", "use training.loss");
    }
  }
  if (method == TrlMethod::other || method == TrlMethod::texts) {
    need_none_of(conversion,
                 {"beta", "label_smoothing", "loss_weights", "rpo_alpha", "cpo_alpha", "simpo_gamma",
                  "ref_model_name_or_path", "disable_dropout", "desirable_weight", "undesirable_weight"},
                 "read only by losses of pairs");
    if (method == TrlMethod::other) need_none_of(conversion, {"loss_type"}, "its method is refused");
    return false;
  }
  if (const ConfigValue* disabled = conversion.find("disable_dropout");
      disabled != nullptr && is_off(*disabled, "")) {
    pairs.dropout = {};
  } else {
    need_none_of(conversion, {"disable_dropout"}, "training on pairs has no dropout");
  }
  if (method == TrlMethod::reward) {
    convert_trl_reward(conversion, pairs);
  } else if (method == TrlMethod::kto) {
    convert_trl_kto(conversion, losses, pairs);
  } else if (method == TrlMethod::cpo) {
    convert_trl_cpo(conversion, losses, pairs);
  } else {
    convert_trl_dpo(conversion, pairs);
  }
  if (!conversion.is_set("preference.loss")) return false;
  conversion.set("", "data.too_long", "drop");
  if (!has_any(conversion, {"max_prompt_length", "max_completion_length"}))
    conversion.lose("data.too_long", kPairsDropped);
  conversion.set_default("optimizer.lr", "1e-6");
  return true;
}

void finish_trl(ForeignConversion& conversion) {
  convert_trl_adapter(conversion);
  finish_hugging_face(conversion, "");
  convert_strategies(conversion);
  const bool on_pairs = convert_trl_pairs(conversion);
  if (on_pairs)
    need_none_of(conversion, {"assistant_only_loss", "completion_only_loss", "dataset_text_field"},
                 kAnswersCount);
  const bool is_conversation = !conversion.has("dataset_text_field");
  std::string options = is_conversation ? ", format = \"messages\"" : "";
  // TRL learns every message unless told otherwise.
  if (is_conversation && !conversion.is_true("assistant_only_loss")) options += ", loss_on = \"all\"";
  if (!is_conversation) options = format(", field = {}", toml_string(conversion.text("dataset_text_field")));
  if (on_pairs) options = format(", format = \"{}\"", preference_format(conversion));
  if (!on_pairs && conversion.has("completion_only_loss"))
    conversion.lose("completion_only_loss", "format = \"prompt_completion\" learns the completion");
  convert_mixture(conversion, options);
  if (const ConfigValue* name = conversion.find("dataset_name")) {
    std::string path = name->text;
    if (const std::string split = conversion.text("dataset_train_split"); !split.empty() && split != "train")
      path = format("{}/**/{}*", path, split);
    conversion.set_sources("dataset_name", "data.sources",
                           {format("path = {}{}", toml_string(path), options)},
                           /*are_joined=*/true);
    if (const std::string config = conversion.text("dataset_config"); !config.empty())
      conversion.lose("dataset_config", "data.sources names the folder of this part");
    if (const std::string split = conversion.text("dataset_test_split"); !split.empty())
      conversion.set_sources(
          "dataset_test_split", "data.validation",
          {format("path = {}{}", toml_string(format("{}/**/{}*", name->text, split)), options)},
          /*are_joined=*/true);
  }
  if (const auto held_out = conversion.number("dataset_mixture.test_split_size")) {
    if (*held_out < 1) {
      conversion.set("dataset_mixture.test_split_size", "data.validation_fraction", toml_float(*held_out));
    } else {
      conversion.lose("dataset_mixture.test_split_size",
                      "a number of rows; set data.validation_fraction to a share");
    }
  }
  if (on_pairs) {
    need_none_of(conversion, {"packing", "packing_strategy"}, "preference data are not packed there");
  } else if (const ConfigValue* packing = conversion.find("packing")) {
    const std::string strategy = conversion.text("packing_strategy");
    const bool wrapped = strategy == "wrapped";
    conversion.set("packing", "data.packing", !packing->boolean ? "none" : wrapped ? "concat" : "best_fit");
  } else if (conversion.has("packing_strategy")) {
    conversion.need_nothing("packing_strategy", "read only with packing");
  }
}

}  // namespace

void finish_hugging_face(ForeignConversion& conversion, std::string_view prefix) {
  const auto key = [&](std::string_view name) { return format("{}{}", prefix, name); };
  convert_length(conversion, key("max_steps"), key("num_train_epochs"), 3);
  convert_warmup(conversion, key("warmup_steps"), key("warmup_ratio"));
  convert_batch(conversion, key("per_device_train_batch_size"), 8, key("gradient_accumulation_steps"), 1);
  finish_trainer_arguments(conversion, prefix);
}

void finish_trainer_arguments(ForeignConversion& conversion, std::string_view prefix) {
  const auto key = [&](std::string_view name) { return format("{}{}", prefix, name); };
  convert_min_lr(conversion, key("lr_scheduler_kwargs.min_lr"));
  convert_kept(conversion, key("save_total_limit"));
  if (const auto steps = conversion.number(key("logging_steps"))) {
    if (*steps >= 1) {
      conversion.set(key("logging_steps"), "metrics.log_freq", format("{}", static_cast<int64_t>(*steps)));
    } else {
      conversion.lose(key("logging_steps"), "a share of the run; set metrics.log_freq to a number of steps");
    }
  }
  for (const std::string_view name : {"use_cpu", "no_cuda"}) {
    const ConfigValue* const on_cpu = conversion.find(key(name));
    if (on_cpu == nullptr) continue;
    if (on_cpu->boolean) {
      conversion.set(key(name), "training.device", "cpu");
    } else {
      conversion.need_nothing(key(name), "training.device = \"auto\" takes a GPU if there is one");
    }
  }
  if (const auto seed = conversion.number(key("seed"))) {
    const std::string text = format("{}", static_cast<int64_t>(*seed));
    conversion.set(key("seed"), "training.seed", text);
    if (!conversion.is_set("data.seed")) conversion.set(key("seed"), "data.seed", text);
  }
  // Files disable the timeout by setting it to years.
  constexpr double kLongest = 1e6;
  if (const auto seconds = conversion.number(key("ddp_timeout"))) {
    conversion.set(key("ddp_timeout"), "comm.train_timeout", number_text(std::min(*seconds, kLongest)),
                   *seconds > kLongest ? "the longest that is possible" : "");
  }
}

std::span<const ForeignKey> training_argument_keys() {
  return kTrainingArguments;
}

const ForeignTrainer& hugging_face_trainer() {
  static constexpr ForeignTrainer trainer{.name = "hugging-face",
                                          .title = "Hugging Face TrainingArguments",
                                          .keys = kTrainingArguments,
                                          .inherited = {},
                                          .defaults = kTrainingDefaults,
                                          .finish = finish_training_arguments};
  return trainer;
}

const ForeignTrainer& trl_trainer() {
  static constexpr ForeignTrainer trainer{.name = "trl",
                                          .title = "TRL",
                                          .keys = kTrlKeys,
                                          .inherited = kTrainingArguments,
                                          .defaults = kTrlDefaults,
                                          .finish = finish_trl};
  return trainer;
}

}  // namespace stepforge
