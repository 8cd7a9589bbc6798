// SPDX-License-Identifier: Apache-2.0
// Megatron-LM: arguments in YAML files of any sections, or of a shell script.
#include <array>
#include <cmath>
#include <cstdlib>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kOverlapped = "communication overlaps by itself";
constexpr std::string_view kOneCheckpointFormat = "checkpoints fit any number of ranks";
constexpr std::string_view kAlwaysLogged = "metrics.jsonl has it";
constexpr std::string_view kByLauncher = "use `stepforge launch` or torchrun";

constexpr auto kMegatronKeys = std::to_array<ForeignKey>({
    {"num_layers", "model.n_layers"},
    {"hidden_size", "model.dim"},
    {"ffn_hidden_size", "model.ffn_dim"},
    {"num_attention_heads", "model.n_heads"},
    {"group_query_attention", "model.n_kv_heads", "", read},
    {"num_query_groups", "model.n_kv_heads", "", read},
    {"kv_channels", "model.head_dim"},
    {"max_position_embeddings", "model.max_position"},
    {"position_embedding_type", "model.family", "llama has rotary positions", read},
    {"use_rotary_position_embeddings", "model.family", "llama has rotary positions", read},
    {"no_position_embedding", "", "positions are rotary", needless},
    {"rotary_base", "model.rope_theta"},
    {"rotary_percent", "", "llama rotates whole heads", lost, "1"},
    {"rotary_scaling_factor", "model.rope_scaling.factor", "", read},
    {"use_rope_scaling", "model.rope_scaling.type", "\"llama3\"", read},
    {"rope_scaling_factor", "model.rope_scaling.factor", "", read},
    {"rotary_seq_len_interpolation_factor", "model.rope_scaling.factor", "with type = \"linear\"", lost, "1"},
    {"normalization", "model.family", "llama has RMS norms", read},
    {"norm_epsilon", "model.norm_eps"},
    {"swiglu", "model.family", "llama has a gated MLP", read},
    {"disable_bias_linear", "model.family", "llama has no biases", read},
    {"add_bias_linear", "model.family", "llama has no biases", read},
    {"add_qkv_bias", "model.family", "qwen2 has biases in attention", read},
    {"qk_layernorm", "model.family", "qwen3 normalizes queries and keys", read},
    {"untie_embeddings_and_output_weights", "model.tie_embeddings", "the opposite value", read},
    {"hidden_dropout", "model.dropout"},
    {"attention_dropout", "", "not available yet: only model.dropout of the blocks", lost, "0"},
    {"init_method_std", "", "not available yet: weights start with a deviation of their family", lost,
     "0.02"},
    {"apply_layernorm_1p", "model.family", "gemma2 has norms around 1", lost},
    {"squared_relu", "model.family", "no family has it", lost},
    {"openai_gelu", "model.family", "no family has it", lost},
    {"num_experts", "model.n_experts"},
    {"moe_router_topk", "model.experts_per_token"},
    {"moe_ffn_hidden_size", "model.moe_ffn_dim"},
    {"moe_shared_expert_intermediate_size", "model.shared_expert_dim"},
    {"moe_layer_freq", "model.moe_layer_freq"},
    {"moe_aux_loss_coeff", "model.router_aux_loss_weight"},
    {"moe_z_loss_coeff", "model.router_z_loss_weight"},
    {"moe_router_bias_update_rate", "model.router_bias_update_speed"},
    {"moe_router_load_balancing_type", "model.router_aux_loss_weight", "", lost, "aux_loss|seq_aux_loss"},
    {"moe_router_enable_expert_bias", "model.router_bias_update_speed", "", needless},
    {"moe_router_dtype", "", "routers are computed in fp32", needless},
    {"moe_router_pre_softmax", "model.norm_topk_prob", "", needless},
    {"moe_router_score_function", "model.family", "deepseek_v3 scores by sigmoid", lost, "softmax"},
    {"moe_router_num_groups", "model.n_expert_groups"},
    {"moe_router_group_topk", "model.groups_per_token"},
    {"moe_router_topk_scaling_factor", "model.routed_scaling_factor"},
    {"moe_token_dispatcher_type", "parallelism.expert_parallel_dispatcher", "\"alltoall\" or \"allgather\"",
     read},
    {"moe_grouped_gemm", "", kFusedKernels, needless},
    {"moe_use_legacy_grouped_gemm", "", kFusedKernels, needless},
    {"moe_permute_fusion", "", kFusedKernels, needless},
    {"moe_pad_expert_input_to_capacity", "", "no token is dropped", lost},
    {"moe_expert_capacity_factor", "", "no token is dropped", lost},
    {"moe_token_drop_policy", "", "no token is dropped", needless},
    {"multi_latent_attention", "model.family", "deepseek_v2 and deepseek_v3 have it", lost},
    {"q_lora_rank", "model.q_lora_rank"},
    {"kv_lora_rank", "model.kv_lora_rank"},
    {"qk_head_dim", "model.qk_nope_head_dim"},
    {"qk_pos_emb_head_dim", "model.qk_rope_head_dim"},
    {"v_head_dim", "model.v_head_dim"},
    {"mtp_num_layers", "model.n_mtp_layers"},
    {"mtp_loss_scaling_factor", "model.mtp_loss_weight"},
    {"spec", "", kFusedKernels, needless},
    {"use_mcore_models", "", "there is one implementation", needless},
    {"use_legacy_models", "", "there is one implementation", needless},
    {"transformer_impl", "", kFusedKernels, needless},
    {"make_vocab_size_divisible_by", "model.vocab_size", "0 means the vocabulary of the tokenizer", needless},
    {"vocab_size", "model.vocab_size"},
    {"seq_length", "training.seq_len"},
    {"encoder_seq_length", "training.seq_len"},
    {"micro_batch_size", "training.local_batch_size"},
    {"global_batch_size", "training.global_batch_size"},
    {"rampup_batch_size", "", "not available yet: the batch has one size", lost},
    {"train_iters", "training.steps", "", read},
    {"train_samples", "training.steps", "rows divided by the batch", read},
    {"lr", "optimizer.lr"},
    {"min_lr", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"lr_decay_style", "lr_scheduler.decay_type", "", read},
    {"lr_decay_iters", "lr_scheduler.total_steps", "", read},
    {"lr_decay_samples", "lr_scheduler.total_steps", "rows divided by the batch", read},
    {"lr_warmup_iters", "lr_scheduler.warmup_steps", "", read},
    {"lr_warmup_samples", "lr_scheduler.warmup_steps", "rows divided by the batch", read},
    {"lr_warmup_fraction", "lr_scheduler.warmup_ratio", "", read},
    {"lr_warmup_init", "", "not available yet: the warm-up starts near 0", lost, "0"},
    {"lr_wsd_decay_style", "lr_scheduler.decay_type", "", read},
    {"lr_wsd_decay_iters", "lr_scheduler.decay_ratio", "of the steps", read},
    {"lr_wsd_decay_samples", "lr_scheduler.decay_ratio", "of the steps", lost},
    {"override_opt_param_scheduler", "checkpoint.load.schedule", "", needless},
    {"use_checkpoint_opt_param_scheduler", "checkpoint.load.schedule", "", needless},
    {"weight_decay", "optimizer.weight_decay"},
    {"start_weight_decay", "optimizer.weight_decay", "not available yet: it is constant", lost},
    {"end_weight_decay", "optimizer.weight_decay", "not available yet: it is constant", lost},
    {"weight_decay_incr_style", "optimizer.weight_decay", "not available yet: it is constant", lost,
     "constant"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_eps", "optimizer.eps"},
    {"optimizer", "optimizer.name", "", optimizer},
    {"clip_grad", "training.max_norm"},
    {"seed", "training.seed", "and data.seed", read},
    {"data_parallel_random_init", "", "copies of weights are equal", lost},
    {"bf16", "precision.compute", "\"bf16\"", when_true, "\"bf16\""},
    {"fp16", "", "not available yet; precision.compute = \"bf16\" needs no loss scaling", lost},
    {"loss_scale", "", "bf16 needs no loss scaling", needless},
    {"initial_loss_scale", "", "bf16 needs no loss scaling", needless},
    {"min_loss_scale", "", "bf16 needs no loss scaling", needless},
    {"loss_scale_window", "", "bf16 needs no loss scaling", needless},
    {"hysteresis", "", "bf16 needs no loss scaling", needless},
    {"apply_query_key_layer_scaling", "", "scores are computed in fp32", needless},
    {"attention_softmax_in_fp32", "", "scores are computed in fp32", needless},
    {"accumulate_allreduce_grads_in_fp32", "", "gradients are accumulated in fp32", needless},
    {"grad_reduce_in_bf16", "precision.reduce", "\"bf16\"", when_true, "\"bf16\""},
    {"use_precision_aware_optimizer", "", "weights are kept in fp32", needless},
    {"main_grads_dtype", "", "gradients are accumulated in fp32", needless},
    {"main_params_dtype", "", "weights are kept in fp32", needless},
    {"exp_avg_dtype", "optimizer.name", "\"adamw_bf16\" or \"adamw_8bit\"", lost, "fp32"},
    {"exp_avg_sq_dtype", "optimizer.name", "\"adamw_bf16\" or \"adamw_8bit\"", lost, "fp32"},
    {"fp8_format", "", kNoQuantization, refused},
    {"fp8", "", kNoQuantization, refused},
    {"fp8_recipe", "", "read only with fp8_format", needless},
    {"fp8_amax_history_len", "", "read only with fp8_format", needless},
    {"fp8_amax_compute_algo", "", "read only with fp8_format", needless},
    {"fp8_param_gather", "", "read only with fp8_format", needless},
    {"fp4_format", "", kNoQuantization, refused},
    {"first_last_layers_bf16", "", "read only with fp8_format", needless},
    {"data_path", "data.sources", kOneTablePerSource, read},
    {"train_data_path", "data.sources", kOneTablePerSource, read},
    {"valid_data_path", "data.validation", kOneTablePerSource, read},
    {"test_data_path", "data.validation", kOneTablePerSource, lost},
    {"mock_data", "data.sources", "format = \"synthetic\"", read},
    {"split", "data.split", "", read},
    {"data_cache_path", "data.cache_dir"},
    {"dataloader_type", "", "one epoch after another", lost, "single"},
    {"no_create_attention_mask_in_dataloader", "", "documents of a row never see each other", needless},
    {"reset_position_ids", "", "documents of a row never see each other", needless},
    {"reset_attention_mask", "", "documents of a row never see each other", needless},
    {"eod_mask_loss", "data.eos", "", lost},
    {"num_workers", "", "text is memory-mapped", needless},
    {"no_mmap_bin_files", "", "text is memory-mapped", needless},
    {"tokenizer_type", "tokenizer.type", "\"hf\"", read},
    {"tokenizer_model", "tokenizer.path", "with tokenizer.type = \"hf\"", read},
    {"tokenizer_name_or_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"vocab_file", "tokenizer.path", "the folder with tokenizer.json", lost},
    {"merge_file", "tokenizer.path", "the folder with tokenizer.json", lost},
    {"tiktoken_pattern", "tokenizer.pattern", "", lost},
    {"save", "run_dir"},
    {"load", "checkpoint.resume", "a run continues by itself", needless},
    {"pretrained_checkpoint", "model.from", kModelFolder, model},
    {"finetune", "checkpoint.load.optimizer", "model.from starts anew", needless},
    {"no_load_optim", "checkpoint.load.optimizer", "false begins anew", needless},
    {"no_load_rng", "", "no state of random numbers is kept", needless},
    {"no_save_optim", "", "not available yet: checkpoints hold all that a resume needs", lost},
    {"no_save_rng", "", "no state of random numbers is kept", needless},
    {"save_interval", "checkpoint.interval"},
    {"non_persistent_save_interval", "checkpoint.interval", "", needless},
    {"save_retain_interval", "checkpoint.keep_latest_k", "", lost},
    {"async_save", "checkpoint.async"},
    {"ckpt_format", "", kOneCheckpointFormat, needless},
    {"dist_ckpt_format", "", kOneCheckpointFormat, needless},
    {"use_dist_ckpt", "", kOneCheckpointFormat, needless},
    {"auto_detect_ckpt_format", "", kOneCheckpointFormat, needless},
    {"ckpt_fully_parallel_load", "", kOneCheckpointFormat, needless},
    {"ckpt_fully_parallel_save", "", kOneCheckpointFormat, needless},
    {"ckpt_assume_constant_structure", "", kOneCheckpointFormat, needless},
    {"dist_ckpt_strictness", "checkpoint.strict", "", needless},
    {"exit_interval", "training.steps", "a run of fewer steps", lost},
    {"exit_duration_in_mins", "", kNotAvailable, lost},
    {"exit_signal_handler", "", "a signal saves and stops", needless},
    {"eval_interval", "validation.freq"},
    {"eval_iters", "validation.steps", "", positive},
    {"log_interval", "metrics.log_freq"},
    {"log_throughput", "", kAlwaysLogged, needless},
    {"log_progress", "", kAlwaysLogged, needless},
    {"log_params_norm", "", kNotAvailable, lost},
    {"log_num_zeros_in_grad", "", kNotAvailable, lost},
    {"log_memory_to_tensorboard", "", kAlwaysLogged, needless},
    {"log_timers_to_tensorboard", "", kTraceOption, needless},
    {"log_validation_ppl_to_tensorboard", "", kAlwaysLogged, needless},
    {"log_loss_scale_to_tensorboard", "", kAlwaysLogged, needless},
    {"log_learning_rate_to_tensorboard", "", kAlwaysLogged, needless},
    {"log_batch_size_to_tensorboard", "", kAlwaysLogged, needless},
    {"log_world_size_to_tensorboard", "", kAlwaysLogged, needless},
    {"timing_log_level", "", kTraceOption, needless},
    {"timing_log_option", "", kTraceOption, needless},
    {"tensorboard_dir", "", kCurvesElsewhere, lost},
    {"tensorboard_queue_size", "", "read only with tensorboard_dir", needless},
    {"tensorboard_log_interval", "", "read only with tensorboard_dir", needless},
    {"wandb_project", "", kCurvesElsewhere, lost},
    {"wandb_exp_name", "", "read only with wandb_project", needless},
    {"wandb_save_dir", "", "read only with wandb_project", needless},
    {"one_logger_project", "", kCurvesElsewhere, lost},
    {"profile", "", kTraceOption, lost},
    {"profile_step_start", "", kTraceOption, needless},
    {"profile_step_end", "", kTraceOption, needless},
    {"profile_ranks", "", kTraceOption, needless},
    {"use_pytorch_profiler", "", kTraceOption, needless},
    {"tensor_model_parallel_size", "parallelism.tensor_parallel_degree"},
    {"pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree"},
    {"context_parallel_size", "parallelism.context_parallel_degree"},
    {"expert_model_parallel_size", "parallelism.expert_parallel_degree"},
    {"expert_tensor_parallel_size", "parallelism.expert_tensor_parallel_degree"},
    {"num_layers_per_virtual_pipeline_stage", "parallelism.pipeline_parallel_layers_per_stage",
     "with pipeline_parallel_schedule = \"Interleaved1F1B\"", read},
    {"num_virtual_stages_per_pipeline_rank", "parallelism.pipeline_parallel_layers_per_stage", "", lost},
    {"decoder_first_pipeline_num_layers", "parallelism.pipeline_parallel_first_stage_less_layers", "", lost},
    {"decoder_last_pipeline_num_layers", "parallelism.pipeline_parallel_last_stage_less_layers", "", lost},
    {"account_for_embedding_in_pipeline_split", "parallelism.pipeline_parallel_first_stage_less_layers", "",
     lost},
    {"account_for_loss_in_pipeline_split", "parallelism.pipeline_parallel_last_stage_less_layers", "", lost},
    {"cp_comm_type", "parallelism.context_parallel_method",
     "\"allgather\", \"ring\", \"ulysses\" or \"hybrid\"", read},
    {"sequence_parallel", "parallelism.enable_sequence_parallel"},
    {"tp_comm_overlap", "parallelism.enable_async_tensor_parallel"},
    {"use_distributed_optimizer", "parallelism.data_parallel_shard_degree", "moments are always sharded",
     needless},
    {"use_torch_fsdp2", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"use_megatron_fsdp", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"use_custom_fsdp", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"data_parallel_sharding_strategy", "parallelism.data_parallel_shard_degree", kShardedByDefault,
     needless},
    {"num_distributed_optimizer_instances", "parallelism.data_parallel_replicate_degree", "", positive},
    {"overlap_grad_reduce", "", kOverlapped, needless},
    {"overlap_param_gather", "", kOverlapped, needless},
    {"overlap_p2p_communication", "", kOverlapped, needless},
    {"no_overlap_p2p_communication", "", kOverlapped, needless},
    {"overlap_param_gather_with_optimizer_step", "", kOverlapped, needless},
    {"align_param_gather", "", kOverlapped, needless},
    {"defer_embedding_wgrad_compute", "", kOverlapped, needless},
    {"ddp_bucket_size", "", kOverlapped, needless},
    {"ddp_num_buckets", "", kOverlapped, needless},
    {"moe_shared_expert_overlap", "", kOverlapped, needless},
    {"optimizer_cpu_offload", "parallelism.fsdp_cpu_offload"},
    {"recompute_granularity", "activation_checkpoint.mode", "\"full\" or \"regions\"", read},
    {"recompute_activations", "activation_checkpoint.mode", "\"regions\"", read},
    {"recompute_method", "activation_checkpoint.mode", "\"full\", \"every_n\" or \"blocks\"", read},
    {"recompute_num_layers", "activation_checkpoint.every_n", "with mode = \"every_n\"", read},
    {"recompute_modules", "activation_checkpoint.regions", "\"attention\" or \"mlp\"", read},
    {"deterministic_mode", "training.reduction", "runs give the same bits", needless},
    {"use_flash_attn", "", kFusedKernels, needless},
    {"attention_backend", "", kFusedKernels, needless},
    {"cross_entropy_loss_fusion", "", kFusedKernels, needless},
    {"cross_entropy_fusion_impl", "", kFusedKernels, needless},
    {"no_masked_softmax_fusion", "", kFusedKernels, needless},
    {"no_bias_swiglu_fusion", "", kFusedKernels, needless},
    {"no_bias_gelu_fusion", "", kFusedKernels, needless},
    {"no_bias_dropout_fusion", "", kFusedKernels, needless},
    {"no_rope_fusion", "", kFusedKernels, needless},
    {"no_persist_layer_norm", "", kFusedKernels, needless},
    {"no_gradient_accumulation_fusion", "", kFusedKernels, needless},
    {"apply_rope_fusion", "", kFusedKernels, needless},
    {"bias_activation_fusion", "", kFusedKernels, needless},
    {"enable_cuda_graph", "", kFusedKernels, needless},
    {"cuda_graph_impl", "", kFusedKernels, needless},
    {"te_rng_tracker", "", kFusedKernels, needless},
    {"manual_gc", "", "there is no garbage collector", needless},
    {"manual_gc_interval", "", "there is no garbage collector", needless},
    {"empty_unused_memory_level", "", "there is no cache to empty", needless},
    {"distributed_backend", "comm.backend", "\"auto\" chooses", needless},
    {"distributed_timeout_minutes", "comm.train_timeout", "in seconds", read},
    {"nccl_ub", "", kOverlapped, needless},
    {"use_sharp", "", kOverlapped, needless},
    {"nproc_per_node", "", kByLauncher, read},
    {"nnodes", "", kByLauncher, read},
    {"node_rank", "", kByLauncher, needless},
    {"master_addr", "", kByLauncher, needless},
    {"master_port", "", kByLauncher, needless},
    {"rdzv_id", "", kByLauncher, needless},
    {"rdzv_backend", "", kByLauncher, needless},
    {"rdzv_endpoint", "", kByLauncher, needless},
    {"lora_r", "", kNoLora, refused},
    {"lora_target_modules", "", kNoLora, refused},
    {"stage", "", kNoPreference, refused, "pt|sft|pretrain"},
    {"ENV_VARS.*", "", "variables of GPUs are not read", needless},
    {"AFTER_SCRIPT", "", "about the test of the file", needless},
    {"BEFORE_SCRIPT", "", "about the test of the file", needless},
    {"rerun_mode", "", "runs give the same bits", needless},
    {"use_persistent_ckpt_worker", "", kOneCheckpointFormat, needless},
    {"dist_ckpt_optim_fully_reshardable", "", kOneCheckpointFormat, needless},
    {"TEST_TYPE", "", "about the test of the file", needless},
    {"MODE", "", "about the test of the file", needless},
    {"METRICS", "", "about the test of the file", needless},
});

constexpr auto kMegatronDefaults = std::to_array<ForeignDefault>({
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.999"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.01"},
    {"training.max_norm", "1.0"},
    {"training.seed", "1234"},
    {"lr_scheduler.decay_type", "linear"},
    {"lr_scheduler.warmup_steps", "0"},
    {"validation.freq", "1000"},
    {"validation.steps", "100"},
    {"metrics.log_freq", "100"},
    {"model.dropout", "0.1"},
    {"precision.compute", "fp32"},
    {"parallelism.enable_sequence_parallel", "false"},
});

bool is_on(ForeignConversion& conversion, std::string_view key) {
  const ConfigValue* value = conversion.find(key);
  return value != nullptr && !is_off(*value, "");
}

void convert_megatron_family(ForeignConversion& conversion) {
  const bool is_rotary = conversion.text("position_embedding_type") == "rope" ||
                         is_on(conversion, "use_rotary_position_embeddings");
  const std::string norm = conversion.text("normalization");
  const bool is_gated = is_on(conversion, "swiglu");
  const ConfigValue* biases = conversion.find("add_bias_linear");
  const bool has_no_biases =
      is_on(conversion, "disable_bias_linear") || (biases != nullptr && is_off(*biases, ""));
  std::string missing;
  const auto require = [&](bool condition, std::string_view what) {
    if (!condition) missing += format("{}{}", missing.empty() ? "" : ", ", what);
  };
  require(is_rotary, "position_embedding_type rope");
  require(norm == "RMSNorm", "normalization RMSNorm");
  require(is_gated, "swiglu");
  require(has_no_biases, "disable_bias_linear");
  if (!missing.empty())
    conversion.lose("model.family",
                    format("a llama is trained, which is the file's model only with {}", missing));
  const bool is_normalized = is_on(conversion, "qk_layernorm");
  const bool has_experts = conversion.config().model.n_experts > 0;
  const std::string_view family = has_experts     ? (is_normalized ? "qwen3_moe" : "mixtral")
                                  : is_normalized ? "qwen3"
                                  : is_on(conversion, "add_qkv_bias") ? "qwen2"
                                                                      : "llama";
  if (family != "llama") conversion.set("", "model.family", std::string(family));
}

void convert_megatron_sizes(ForeignConversion& conversion) {
  const ModelConfig& model = conversion.config().model;
  if (conversion.is_set("model.n_heads")) {
    const bool is_grouped = is_on(conversion, "group_query_attention");
    const double groups = conversion.number("num_query_groups").value_or(1);
    const double kv_heads = is_grouped ? groups : static_cast<double>(model.n_heads);
    conversion.set("num_query_groups", "model.n_kv_heads", number_text(kv_heads));
  }
  if (conversion.is_set("model.dim") && !conversion.is_set("model.ffn_dim")) {
    constexpr int64_t multiple = 64;
    const bool is_gated = conversion.has("swiglu");
    const int64_t ffn = is_gated ? model.dim * 8 / 3 / multiple * multiple : 4 * model.dim;
    conversion.set_default("model.ffn_dim", format("{}", ffn));
  }
  const bool is_tied = !is_on(conversion, "untie_embeddings_and_output_weights");
  if (conversion.is_set("model.n_layers"))
    conversion.set("untie_embeddings_and_output_weights", "model.tie_embeddings", is_tied ? "true" : "false");
  if (is_on(conversion, "use_rope_scaling")) {
    conversion.set("use_rope_scaling", "model.rope_scaling.type", "llama3");
    const double factor = conversion.number("rope_scaling_factor").value_or(8);
    conversion.set("rope_scaling_factor", "model.rope_scaling.factor", toml_float(factor));
  }
}

/// A path, or weights and paths in turn.
void convert_megatron_paths(ForeignConversion& conversion, std::string_view key, std::string_view ours) {
  const ConfigValue* value = conversion.find(key);
  if (value == nullptr) return;
  std::vector<std::string> sources;
  std::string weight;
  std::vector<std::string> words;
  for (const std::string& part : names_in(*value)) {
    for (size_t at = 0; at < part.size();) {
      const size_t end = std::min(part.find(' ', at), part.size());
      if (end > at) words.push_back(part.substr(at, end - at));
      at = end + 1;
    }
  }
  for (const std::string& word : words) {
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    if (*end == '\0' && words.size() > 1) {
      weight = format(", weight = {}", toml_float(number));
    } else {
      sources.push_back(format("path = {}{}", toml_string(word), weight));
      weight = "";
    }
  }
  conversion.set_sources(key, ours, sources, /*are_joined=*/false);
}

void convert_megatron_data(ForeignConversion& conversion) {
  if (is_on(conversion, "mock_data")) {
    conversion.set_sources("mock_data", "data.sources", {"format = \"synthetic\""}, /*are_joined=*/true);
    if (conversion.has("split")) conversion.need_nothing("split", "synthetic data are not divided");
  } else {
    convert_megatron_paths(conversion, "data_path", "data.sources");
    convert_megatron_paths(conversion, "train_data_path", "data.sources");
    convert_megatron_paths(conversion, "valid_data_path", "data.validation");
    const std::string split = conversion.text("split");
    if (!split.empty()) {
      conversion.set("split", "data.split", toml_string(split));
    } else if (conversion.has("data_path")) {
      conversion.set_default("data.split", "\"969,30,1\"");
    }
  }
  const std::string type = conversion.text("tokenizer_type");
  if (type == "HuggingFaceTokenizer") {
    conversion.set("tokenizer_type", "tokenizer.type", "hf");
    if (const std::string path = conversion.text("tokenizer_model"); !path.empty())
      conversion.set("tokenizer_model", "tokenizer.path", toml_string(path));
  } else if (type == "NullTokenizer") {
    conversion.need_nothing("tokenizer_type", "model.vocab_size has the vocabulary");
  } else {
    if (!type.empty())
      conversion.lose("tokenizer_type",
                      "set tokenizer.type = \"hf\" and tokenizer.path to a Hugging Face folder");
    if (conversion.has("tokenizer_model"))
      conversion.lose("tokenizer_model", "tokenizer.path is a Hugging Face folder or tokenizer.json");
  }
}

void convert_megatron_length(ForeignConversion& conversion) {
  const auto batch =
      static_cast<double>(std::max<int64_t>(1, conversion.config().training.global_batch_size));
  const auto steps_of = [&](std::string_view steps, std::string_view samples, std::string_view ours) {
    if (const auto number = conversion.number(steps))
      return conversion.set(steps, ours, number_text(*number));
    if (const auto number = conversion.number(samples))
      conversion.set(samples, ours, number_text(std::floor(*number / batch)),
                     format("{} rows in steps of {}", *number, batch));
  };
  steps_of("train_iters", "train_samples", "training.steps");
  steps_of("lr_decay_iters", "lr_decay_samples", "lr_scheduler.total_steps");
  steps_of("lr_warmup_iters", "lr_warmup_samples", "lr_scheduler.warmup_steps");
  if (const auto share = conversion.number("lr_warmup_fraction")) {
    conversion.unset("lr_scheduler.warmup_steps");
    conversion.set("lr_warmup_fraction", "lr_scheduler.warmup_ratio", toml_float(*share));
  }
}

void convert_megatron_schedule(ForeignConversion& conversion) {
  std::string style = conversion.text("lr_decay_style");
  std::string decay = conversion.text("lr_wsd_decay_style");
  const auto decay_steps = conversion.number("lr_wsd_decay_iters");
  if (style == "WSD") {
    const int64_t steps = conversion.config().training.steps;
    if (decay_steps && steps > 0)
      conversion.set("lr_wsd_decay_iters", "lr_scheduler.decay_ratio",
                     toml_float(*decay_steps / static_cast<double>(steps)));
    if (decay == "minus_sqrt") decay = "sqrt";
    if (decay != "linear" && decay != "cosine" && decay != "sqrt")
      return conversion.lose("lr_decay_style",
                             "lr_scheduler.decay_type of its end is linear, cosine or sqrt here");
    style = decay;
  } else {
    for (const std::string_view key : {"lr_wsd_decay_style", "lr_wsd_decay_iters"})
      if (conversion.has(key)) conversion.need_nothing(key, "read only with lr_decay_style WSD");
  }
  if (style == "inverse-square-root") style = "inverse_sqrt";
  if (!style.empty()) conversion.set("lr_decay_style", "lr_scheduler.decay_type", style);
  convert_min_lr(conversion, "min_lr");
}

void convert_megatron_recomputation(ForeignConversion& conversion) {
  std::string what = conversion.text("recompute_granularity");
  if (is_on(conversion, "recompute_activations")) what = "selective";
  const std::string method = conversion.text("recompute_method");
  const auto layers = conversion.number("recompute_num_layers");
  const bool has_modules = conversion.find("recompute_modules") != nullptr;
  const std::string_view key =
      conversion.has("recompute_granularity") ? "recompute_granularity" : "recompute_activations";
  if (what == "selective") {
    conversion.set(key, "activation_checkpoint.mode", "regions");
    return conversion.set(has_modules ? "recompute_modules" : key, "activation_checkpoint.regions",
                          "[\"attention\"]");
  }
  if (what != "full") return;
  if (method == "block" && layers) {
    std::string blocks;
    for (int64_t layer = 0; layer < std::llround(*layers); ++layer)
      blocks += format("{}{}", layer > 0 ? ", " : "", layer);
    conversion.set(key, "activation_checkpoint.mode", "blocks");
    return conversion.set("recompute_num_layers", "activation_checkpoint.blocks", format("[{}]", blocks));
  }
  conversion.set(key, "activation_checkpoint.mode", "full");
}

void finish_megatron(ForeignConversion& conversion) {
  if (const auto processes = conversion.number("nproc_per_node"))
    conversion.set_ranks(*processes * conversion.number("nnodes").value_or(1));
  for (const std::string_view key : {"nproc_per_node", "nnodes"})
    if (conversion.has(key)) conversion.need_nothing(key, kByLauncher);
  convert_megatron_family(conversion);
  convert_megatron_sizes(conversion);
  convert_megatron_data(conversion);
  convert_megatron_length(conversion);
  convert_megatron_schedule(conversion);
  convert_megatron_recomputation(conversion);
  // Without batches there is no validation.
  if (const auto batches = conversion.number("eval_iters"); batches && *batches == 0)
    conversion.set("eval_iters", "validation.freq", "0");
  if (const auto seed = conversion.number("seed")) {
    conversion.set("seed", "training.seed", number_text(*seed));
    conversion.set("seed", "data.seed", number_text(*seed));
  }
  const std::string dispatcher = conversion.text("moe_token_dispatcher_type");
  if (!dispatcher.empty())
    conversion.set("moe_token_dispatcher_type", "parallelism.expert_parallel_dispatcher",
                   dispatcher == "flex" ? "alltoall" : dispatcher);
  const std::string comm = conversion.text("cp_comm_type");
  if (!comm.empty())
    conversion.set("cp_comm_type", "parallelism.context_parallel_method",
                   comm == "p2p"          ? "ring"
                   : comm == "all_gather" ? "allgather"
                   : comm == "a2a"        ? "ulysses"
                   : comm == "a2a+p2p"    ? "hybrid"
                                          : comm);
  if (const auto layers = conversion.number("num_layers_per_virtual_pipeline_stage")) {
    conversion.set("num_layers_per_virtual_pipeline_stage", "parallelism.pipeline_parallel_layers_per_stage",
                   number_text(*layers));
    conversion.set("", "parallelism.pipeline_parallel_schedule", "Interleaved1F1B");
  }
  constexpr double kSeconds = 60;
  if (const auto minutes = conversion.number("distributed_timeout_minutes"))
    conversion.set("distributed_timeout_minutes", "comm.train_timeout", number_text(*minutes * kSeconds));
}

}  // namespace

const ForeignTrainer& megatron_trainer() {
  static constexpr ForeignTrainer trainer{.name = "megatron",
                                          .title = "Megatron-LM",
                                          .keys = kMegatronKeys,
                                          .inherited = {},
                                          .defaults = kMegatronDefaults,
                                          .finish = finish_megatron,
                                          .ignores_sections = true};
  return trainer;
}

}  // namespace stepforge
