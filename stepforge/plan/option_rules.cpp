// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/option_rules.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>

#include "stepforge/base/words.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_rope.h"
#include "stepforge/catalog/lr_schedule.h"
#include "stepforge/catalog/optimizer_kinds.h"
#include "stepforge/catalog/pair_losses.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/data/data_plan.h"
#include "stepforge/plan/pipeline_plan.h"
#include "stepforge/records/file_format.h"
#include "stepforge/tensorfile/manifest.h"

namespace stepforge {

namespace {

using Use = const OptionUse&;
constexpr UnreadAction kName = UnreadAction::name;

bool is_synthetic_source(const DataSourceConfig& source) {
  return source.kind == kBuiltinSource && source.format == DataFormat::synthetic;
}

/// Whether the program tokenizes documents of the source.
bool has_documents(const DataSourceConfig& source) {
  return source.kind == kBuiltinSource && !is_synthetic_source(source) &&
         !is_indexed({.path = source.path, .format = std::string(choice_name(source.format))});
}

/// Whether the format says which keys records have.
bool is_chat(const DataSourceConfig& source) {
  return source.dataset.empty() && source.format >= DataFormat::messages;
}

bool may_have_texts(const DataSourceConfig& source) {
  return has_documents(source) && !is_chat(source);
}

/// Whether a file of the source may be plain text. Folders and patterns may hold any files.
bool may_have_plain_text(const DataSourceConfig& source) {
  if (!has_documents(source) || !source.dataset.empty()) return false;
  if (source.format == DataFormat::text) return true;
  if (source.format != DataFormat::automatic) return false;
  return !has_name_of_records(source.path);
}

/// Whether one of the sources is such, or none is named yet.
template <bool (*is_such)(const DataSourceConfig&)>
bool has_source(Use use) {
  const DataConfig& data = use.config.data;
  if (data.sources.empty() && data.validation.empty()) return true;
  const auto any = [](std::string_view list, const std::vector<DataSourceConfig>& sources) {
    return std::ranges::any_of(leaf_sources(list, sources),
                               [](const DataSourceAt& entry) { return is_such(*entry.source); });
  };
  return any("data.sources", data.sources) || any("data.validation", data.validation);
}

bool has_fields(Use use) {
  const auto& source = *static_cast<const DataSourceConfig*>(use.table);
  return source.kind != kBuiltinSource || !source.sources.empty() ||
         (may_have_texts(source) && source.format != DataFormat::text);
}

bool reads_pair_smoothing(Use use) {
  const PreferenceLoss loss = use.config.preference.loss;
  return loss == PreferenceLoss::dpo || loss == PreferenceLoss::cpo || loss == PreferenceLoss::simpo;
}

/// The other losses of pairs always divide by the length.
bool reads_length_normalized(Use use) {
  const PreferenceLoss loss = use.config.preference.loss;
  return loss == PreferenceLoss::dpo || loss == PreferenceLoss::hinge || loss == PreferenceLoss::cpo;
}

bool has_reference(Use use) {
  const PreferenceConfig& preference = use.config.preference;
  return preference.enabled() && find_pair_loss(preference).has_reference;
}

bool has_several_ranks(Use use) {
  return use.ranks.world_size != 1;
}

/// nccl is refused on the CPU, also for one rank.
bool connects_ranks(Use use) {
  return has_several_ranks(use) || use.config.comm.backend == CommBackend::nccl;
}

/// Shared memory needs no network.
bool connects_hosts(Use use) {
  const bool one_host = use.ranks.world_size > 0 && use.ranks.on_host == use.ranks.world_size;
  return has_several_ranks(use) && (!one_host || use.config.comm.backend == CommBackend::gloo);
}

bool shards(Use use) {
  return has_several_ranks(use) || use.config.parallelism.fsdp_cpu_offload;
}

bool has_tensor_ranks(Use use) {
  return use.config.parallelism.tensor_parallel_degree > 1;
}

bool has_context_ranks(Use use) {
  return use.config.parallelism.context_parallel_degree > 1;
}

bool spreads_experts(Use use) {
  const ParallelismConfig& parallelism = use.config.parallelism;
  return parallelism.expert_parallel_degree > 1 || parallelism.expert_tensor_parallel_degree > 1;
}

bool trains_tokenizer(Use use) {
  const TokenizerConfig& tokenizer = use.config.tokenizer;
  return tokenizer.type == TokenizerType::bpe && tokenizer.path.empty();
}

bool has_callback(Use use, const std::string& name) {
  const auto& callbacks = use.config.training.callbacks;
  return std::ranges::count(callbacks, "all") + std::ranges::count(callbacks, name) > 0;
}

/// Whether a checkpoint is in the run folder, with which the run would continue.
bool continues(Use use) {
  const Config& config = use.config;
  if (!config.checkpoint.resume) return false;
  return !list_checkpoints(std::filesystem::path(config.run_dir) / config.checkpoint.folder).empty();
}

bool starts_from_weights(Use use) {
  return !use.config.checkpoint.initial_load_path.empty();
}

bool loads_more_than_weights(Use use) {
  return continues(use) || (starts_from_weights(use) && !use.config.checkpoint.initial_load_model_only);
}

bool optimizer_reads(Use use) {
  return OptimizerChoice(use.config.optimizer, use.config.extensions).reads(use.option);
}

const DecayKind& decay_of(Use use) {
  return find_decay(use.config.lr_scheduler.decay_type, use.config.extensions.registry());
}

constexpr std::array kRules = {
    OptionRule{"", "preset run_dir"},
    OptionRule{
        "model",
        "from family dim n_layers n_heads n_kv_heads head_dim ffn_dim vocab_size norm_eps rope_theta "
        "rope_local_theta sliding_window layer_types query_pre_attn_scalar attention_softcap "
        "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim logit_softcap "
        "n_experts experts_per_token moe_ffn_dim shared_expert_dim n_shared_experts norm_topk_prob "
        "routed_scaling_factor n_expert_groups groups_per_token moe_layer_freq first_dense_layers "
        "dense_layers router_aux_loss_weight router_z_loss_weight router_bias_update_speed n_mtp_layers "
        "mtp_loss_weight tie_embeddings head dropout max_position freeze frozen_dtype double_quantization"},  // those that a family does not have are refused by check_model()
    OptionRule{"model", "score_init_std", [](Use use) { return use.config.model.scores(); }, "model.head"},
    OptionRule{"model.rope_scaling", "type"},
    OptionRule{"model.rope_scaling",
               "factor low_freq_factor high_freq_factor original_max_position attention_factor beta_fast "
               "beta_slow mscale mscale_all_dim truncate short_factor long_factor",
               [](Use use) {
                 return reads_rope_option(use.config.model.rope_scaling.type, std::string(use.option));
               },
               "model.rope_scaling.type"},
    OptionRule{"adapter", "type"},
    OptionRule{"adapter",
               "from rank alpha dropout targets layers patterns rslora init b_lr_ratio also_train bias",
               [](Use use) { return use.config.adapter.enabled(); }, "adapter.type"},
    OptionRule{"adapter", "experts",
               [](Use use) { return use.config.adapter.enabled() && use.config.model.n_experts > 0; },
               "model.n_experts adapter.type"},
    OptionRule{"adapter", "svd_iterations", [](Use use) { return use.config.adapter.takes_parts(); },
               "adapter.init"},
    OptionRule{"adapter.patterns[]", "pattern rank alpha"},
    OptionRule{"preference", "loss"},
    OptionRule{"preference", "reference", has_reference, "preference.loss"},
    OptionRule{"preference", "beta sft_weight",
               [](Use use) { return use.config.preference.enabled() && !use.config.preference.scores(); },
               "preference.loss"},
    OptionRule{"preference", "margin",
               [](Use use) {
                 const PreferenceConfig& preference = use.config.preference;
                 return preference.loss == PreferenceLoss::simpo || preference.scores();
               },
               "preference.loss"},
    OptionRule{"preference", "desirable_weight undesirable_weight",
               [](Use use) { return use.config.preference.unpaired(); }, "preference.loss"},
    OptionRule{"preference", "center_weight", [](Use use) { return use.config.preference.scores(); },
               "preference.loss"},
    OptionRule{"preference", "label_smoothing", reads_pair_smoothing, "preference.loss"},
    OptionRule{"preference", "length_normalized", reads_length_normalized, "preference.loss"},
    OptionRule{"distillation", "teacher"},
    OptionRule{"distillation", "top_k weight temperature",
               [](Use use) { return use.config.distillation.enabled(); }, "distillation.teacher"},
    OptionRule{"tokenizer", "type path"},
    OptionRule{"tokenizer",
               "vocab_size train_bytes special_tokens eos_token bos_token min_frequency pattern digits",
               trains_tokenizer, "tokenizer.type tokenizer.path"},
    OptionRule{"data.sources[]", "path kind weight format loss_on dataset name epochs combine sources"},
    OptionRule{"data.sources[]", "field", has_fields, ".format .path", {}, kName},
    OptionRule{"data.validation[]", "path kind format loss_on dataset name"},
    OptionRule{"data.validation[]", "field", has_fields, ".format .path", {}, kName},
    OptionRule{
        "data.validation[]", "weight", [](Use) { return false; }, {}, "as validation reads each source once"},
    OptionRule{"data",
               "sources validation validation_fraction split packing group_by_length balance too_long "
               "chat_template shuffle weights_by temperature epoch_remainder seed prefetch"},
    OptionRule{
        "data", "document", has_source<may_have_plain_text>, {}, "without plain text in data.sources", kName},
    OptionRule{"data",
               "deduplicate on_bad_record max_bad_records cache_dir",
               has_source<has_documents>,
               {},
               "without documents to tokenize in data.sources",
               kName},
    OptionRule{"data", "max_bad_records",
               [](Use use) { return use.config.data.on_bad_record == BadRecordAction::skip; },
               "data.on_bad_record"},
    OptionRule{"data", "preset", [](Use use) { return use.config.data.packing == Packing::preset; },
               "data.packing"},
    OptionRule{"data",
               "bos eos",
               has_source<may_have_texts>,
               {},
               "without texts to tokenize in data.sources",
               kName},
    OptionRule{"data",
               "synthetic_tokens synthetic_document_length",
               has_source<is_synthetic_source>,
               {},
               "without a synthetic source in data.sources",
               kName},
    OptionRule{
        "data.filter",
        "min_bytes max_bytes min_words max_words max_symbols min_mean_word_length max_mean_word_length "
        "max_repeated_lines include exclude",
        has_source<has_documents>,
        {},
        "without documents to tokenize in data.sources",
        kName},
    OptionRule{"training",
               "seq_len local_batch_size global_batch_size steps epochs seed max_norm norm_type "
               "loss_reduction loss nonfinite reduction device threads callbacks"},
    OptionRule{"training", "loss_chunk", [](Use use) { return !use.config.model.scores(); }, "model.head"},
    OptionRule{"training", "loss_aggregation", has_several_ranks, {}, "on one rank", kName},
    OptionRule{"training", "label_smoothing z_loss_weight",
               [](Use use) { return use.config.training.loss == "cross_entropy"; }, "training.loss"},
    OptionRule{"training", "max_skipped",
               [](Use use) { return use.config.training.nonfinite == NonfiniteAction::skip; },
               "training.nonfinite"},
    OptionRule{"precision", "compute"},
    OptionRule{"precision", "reduce", has_several_ranks, {}, "on one rank", kName},
    OptionRule{"optimizer", "name lr weight_decay decay_all param_groups"},
    OptionRule{"optimizer", "beta1 beta2 eps momentum nesterov muon_scale muon_iterations muon_compute",
               optimizer_reads, "optimizer.name"},
    OptionRule{"optimizer.param_groups[]", "pattern lr weight_decay"},
    OptionRule{"optimizer.param_groups[]", "beta1 beta2", optimizer_reads, "optimizer.name"},
    OptionRule{"lr_scheduler", "warmup_ratio total_steps decay_type"},
    OptionRule{"lr_scheduler", "warmup_steps",
               [](Use use) { return use.config.lr_scheduler.warmup_ratio < 0; }, "lr_scheduler.warmup_ratio"},
    OptionRule{"lr_scheduler", "cycles power",
               [](Use use) { return has_word(decay_of(use).reads, use.option); }, "lr_scheduler.decay_type"},
    OptionRule{"lr_scheduler", "decay_ratio min_lr_factor",
               [](Use use) { return decay_of(use).falls || has_word(decay_of(use).reads, use.option); },
               "lr_scheduler.decay_type"},
    OptionRule{"parallelism",
               "data_parallel_replicate_degree data_parallel_shard_degree tensor_parallel_degree "
               "context_parallel_degree expert_parallel_degree expert_tensor_parallel_degree "
               "expert_parallel_overlap pipeline_parallel_degree pipeline_parallel_schedule_csv "
               "pipeline_parallel_stages fsdp_cpu_offload"},
    OptionRule{"parallelism",
               "enable_sequence_parallel enable_async_tensor_parallel disable_loss_parallel "
               "tensor_parallel_plan",
               has_tensor_ranks,
               "parallelism.tensor_parallel_degree",
               {},
               kName},
    OptionRule{"parallelism",
               "plan",
               [](Use use) { return has_tensor_ranks(use) || shards(use); },
               {},
               "on one rank",
               kName},
    OptionRule{"parallelism.tensor_parallel_plan[]", "pattern style"},
    OptionRule{"parallelism",
               "context_parallel_method context_parallel_load_balance ulysses_degree",
               has_context_ranks,
               "parallelism.context_parallel_degree",
               {},
               kName},
    OptionRule{
        "parallelism", "ulysses_degree",
        [](Use use) { return use.config.parallelism.context_parallel_method == ContextMethod::hybrid; },
        "parallelism.context_parallel_method"},
    OptionRule{"parallelism",
               "expert_parallel_dispatcher",
               spreads_experts,
               "parallelism.expert_parallel_degree",
               {},
               kName},
    OptionRule{"parallelism",
               "pipeline_parallel_schedule pipeline_parallel_layers_per_stage "
               "pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers",
               [](Use use) { return has_stages(use.config); },
               "parallelism.pipeline_parallel_degree",
               {},
               kName},
    OptionRule{"parallelism",
               "pipeline_parallel_microbatch_size",
               [](Use use) { return use.config.parallelism.pipeline_parallel_degree > 1; },
               "parallelism.pipeline_parallel_degree",
               {},
               kName},
    OptionRule{"parallelism", "pipeline_parallel_schedule",
               [](Use use) { return use.config.parallelism.pipeline_parallel_schedule_csv.empty(); },
               "parallelism.pipeline_parallel_schedule_csv"},
    OptionRule{"parallelism.pipeline_parallel_stages[]", "blocks"},
    OptionRule{"parallelism",
               "fsdp_reshard_after_forward fsdp_reshard_every_n fsdp_forward_prefetch fsdp_backward_prefetch "
               "fsdp_prefetch_lists",
               shards,
               {},
               "on one rank",
               kName},
    OptionRule{"parallelism",
               "fsdp_partition fsdp_reduce_in_flight fsdp_reduce_each_micro_batch",
               has_several_ranks,
               {},
               "on one rank",
               kName},
    OptionRule{
        "parallelism", "fsdp_reshard_every_n",
        [](Use use) { return use.config.parallelism.fsdp_reshard_after_forward == ReshardMode::every_n; },
        "parallelism.fsdp_reshard_after_forward"},
    OptionRule{"parallelism.fsdp_prefetch_lists[]", "unit forward backward"},
    OptionRule{"comm", "backend init_timeout train_timeout", connects_ranks, {}, "on one rank", kName},
    OptionRule{"comm", "interface",
               [](Use use) { return use.config.comm.backend != CommBackend::shared_memory; }, "comm.backend"},
    OptionRule{"comm", "interface", connects_hosts, {}, "with all ranks on one host in shared memory", kName},
    OptionRule{"activation_checkpoint", "mode"},
    OptionRule{"activation_checkpoint", "every_n",
               [](Use use) { return use.config.activation_checkpoint.mode == RecomputeMode::every_n; },
               "activation_checkpoint.mode"},
    OptionRule{"activation_checkpoint", "blocks",
               [](Use use) { return use.config.activation_checkpoint.mode == RecomputeMode::blocks; },
               "activation_checkpoint.mode"},
    OptionRule{"activation_checkpoint", "regions",
               [](Use use) { return use.config.activation_checkpoint.mode == RecomputeMode::regions; },
               "activation_checkpoint.mode"},
    OptionRule{"activation_checkpoint", "calls",
               [](Use use) { return use.config.activation_checkpoint.mode == RecomputeMode::calls; },
               "activation_checkpoint.mode"},
    OptionRule{"activation_checkpoint", "memory_budget",
               [](Use use) { return use.config.activation_checkpoint.mode == RecomputeMode::budget; },
               "activation_checkpoint.mode"},
    OptionRule{"checkpoint",
               "enable folder timeout resume allow_changed initial_load_path export_dtype exclude_frozen"},
    OptionRule{"training.early_stopping", "patience", [](Use use) { return has_callback(use, "best"); },
               "training.callbacks"},
    OptionRule{"training.early_stopping", "min_gain",
               [](Use use) { return use.config.training.early_stopping.patience > 0; },
               "training.early_stopping.patience"},
    OptionRule{"checkpoint", "keep_best", [](Use use) { return has_callback(use, "best"); },
               "training.callbacks"},
    OptionRule{"checkpoint",
               "interval keep_latest_k save_at_end async",
               [](Use use) { return use.config.checkpoint.enable; },
               "checkpoint.enable",
               {},
               kName},
    OptionRule{"checkpoint", "last_save_in_hf", [](Use use) { return has_callback(use, "export"); },
               "training.callbacks"},
    OptionRule{"checkpoint", "load_step", [](Use use) { return use.config.checkpoint.resume; },
               "checkpoint.resume"},
    OptionRule{"checkpoint", "initial_load_model_only", starts_from_weights, "checkpoint.initial_load_path"},
    OptionRule{"checkpoint",
               "strict",
               [](Use use) { return continues(use) || starts_from_weights(use); },
               {},
               "as there is no checkpoint to load",
               kName},
    OptionRule{"checkpoint.load",
               "optimizer schedule data counters",
               loads_more_than_weights,
               {},
               "as there is no checkpoint to load more than weights from",
               kName},
    OptionRule{"validation", "freq"},
    OptionRule{"validation",
               "steps",
               [](Use use) { return use.config.validation.freq > 0; },
               "validation.freq",
               {},
               kName},
    OptionRule{"sampling", "freq", [](Use use) { return has_callback(use, "sampling"); },
               "training.callbacks"},
    OptionRule{"sampling", "at_ends", [](Use use) { return has_callback(use, "sampling"); },
               "training.callbacks"},
    OptionRule{"sampling",
               "prompt max_tokens temperature top_k seed",
               [](Use use) { return use.config.sampling.enabled(); },
               "sampling.freq",
               {},
               kName},
    OptionRule{"sampling", "top_k seed", [](Use use) { return use.config.sampling.temperature > 0; },
               "sampling.temperature"},
    OptionRule{"metrics", "log_freq enable_jsonl"},
    OptionRule{"metrics", "peak_tflops status_line", [](Use use) { return has_callback(use, "logging"); },
               "training.callbacks"},
    OptionRule{"metrics", "smoothing",
               [](Use use) { return use.config.metrics.status_line != StatusLineMode::off; },
               "metrics.status_line"},
    OptionRule{"metrics",
               "router",
               [](Use use) { return family_of(use.config.model).expert_names != nullptr; },
               "model.family",
               {},
               kName},
    OptionRule{"kernels", "reference"},
    OptionRule{"machine", "name hosts"},
    OptionRule{"debug", "print_config prove_layout plant_nan_step plant_nan_block"},
    OptionRule{"debug", "check_copies_freq", has_several_ranks, {}, "on one rank", kName},
    OptionRule{"debug", "check_copies_freq", [](Use use) { return has_callback(use, "alarms"); },
               "training.callbacks"},
    OptionRule{"experimental", "custom_import"},
};

}  // namespace

std::span<const OptionRule> option_rules() {
  return kRules;
}

}  // namespace stepforge
