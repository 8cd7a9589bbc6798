// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/foreign_keys.h"

#include <algorithm>
#include <array>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kNotAvailable = "not available yet";
constexpr std::string_view kWeightsAreFp32 =
    "not needed: weights are always kept in fp32; precision.compute is the format of the computation";
constexpr std::string_view kOneTablePerSource = "one table { path = \"...\" } per source";
constexpr std::string_view kOneTablePerDataset =
    "one table { path = \"data/dataset_info.json\", dataset = \"...\" } per data set";
constexpr std::string_view kFused = "not needed: the kernels are already fused";
constexpr std::string_view kTrace = "not a configuration key: use `stepforge train --trace FILE`";

constexpr auto kForeignKeys = std::to_array<ForeignKey>({
    // torchtitan
    {"job.dump_folder", "run_dir"},
    {"job.description", "", "not needed", ignore},
    {"job.print_config", "debug.print_config"},
    {"model.name", "preset", "such as preset = \"llama3-8b\"; `stepforge config presets` lists them", preset},
    {"model.flavor", "preset", "such as preset = \"llama3-8b\"; `stepforge config presets` lists them",
     ignore},
    {"model.hf_assets_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.tokenizer_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.converters", "", kNotAvailable},
    {"model.path", "checkpoint.initial_load_path"},
    {"optimizer.implementation", "", kFused, ignore},
    {"optimizer.early_step_in_backward", "", kNotAvailable},
    {"optimizer.betas", "optimizer.beta1", "and optimizer.beta2", by_hand},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate"},
    {"lr_scheduler.type", "lr_scheduler.decay_type", "", decay},
    {"training.dataset", "data.sources", kOneTablePerSource, by_hand},
    {"training.dataset_path", "data.sources", kOneTablePerSource, sources},
    {"training.dtype", "", kWeightsAreFp32, ignore},
    {"training.mixed_precision_param", "precision.compute"},
    {"training.mixed_precision_reduce", "precision.reduce"},
    {"training.enable_cpu_offload", "parallelism.fsdp_cpu_offload"},
    {"training.gc_freq", "", "not needed: there is no garbage collector", ignore},
    {"training.compile", "", kFused, ignore},
    {"training.deterministic", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     by_hand},
    {"debug.deterministic", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     by_hand},
    {"debug.seed", "training.seed"},
    {"precision.dtype", "precision.compute"},
    {"data.path", "data.sources", kOneTablePerSource, sources},
    {"tokenizer.name", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"compile.enable", "", kFused, ignore},
    {"compile.components", "", kFused, ignore},
    {"compile.backend", "", kFused, ignore},
    {"parallelism.context_parallel_rotate_method", "parallelism.context_parallel_method",
     "\"allgather\", \"ring\", \"ulysses\" or \"hybrid\"", by_hand},
    {"parallelism.context_parallel_load_balancer", "parallelism.context_parallel_load_balance",
     "\"head_tail\" or \"none\"", by_hand},
    {"parallelism.enable_async_tensor_parallel", "", kNotAvailable},
    {"activation_checkpoint.mode", "activation_checkpoint.mode", "", recompute},
    {"activation_checkpoint.selective_ac_option", "activation_checkpoint.every_n", "with mode = \"every_n\"",
     ignore},
    {"checkpoint.enable_checkpoint", "checkpoint.enable"},
    {"checkpoint.async_mode", "checkpoint.async", "true or false", async},
    {"checkpoint.initial_load_in_hf", "", "not needed: Hugging Face folders are recognized", ignore},
    {"checkpoint.last_save_model_only", "", kNotAvailable},
    {"checkpoint.enable_first_step_checkpoint", "", kNotAvailable},
    {"checkpoint.create_seed_checkpoint", "",
     "not needed: the initial weights do not depend on the number of ranks"},
    {"checkpoint.exclude_from_loading", "", kNotAvailable},
    {"checkpoint.keep", "checkpoint.keep_latest_k"},
    {"validation.enable", "validation.freq", "a number of steps; 0 = off", strategy},
    {"validation.dataset", "data.validation", kOneTablePerSource, by_hand},
    {"validation.dataset_path", "data.validation", kOneTablePerSource, sources},
    {"validation.local_batch_size", "", "not needed: training.local_batch_size applies", ignore},
    {"validation.seq_len", "", "not needed: training.seq_len applies", ignore},
    {"comm.init_timeout_seconds", "comm.init_timeout"},
    {"comm.train_timeout_seconds", "comm.train_timeout"},
    {"comm.trace_buf_size", "", "not needed", ignore},
    {"metrics.enable_tensorboard", "",
     "not available yet; metrics.jsonl and `stepforge plot` show the curves"},
    {"metrics.enable_wandb", "", "not available yet; metrics.jsonl and `stepforge plot` show the curves"},
    {"metrics.save_tb_folder", "", kNotAvailable, ignore},
    {"metrics.disable_color_printing", "", "not needed: colors are only used on a terminal", ignore},
    {"profiling.enable_profiling", "", kTrace},
    {"profiling.profile_freq", "", kTrace, ignore},
    {"profiling.save_traces_folder", "", kTrace, ignore},
    {"profiling.enable_memory_snapshot", "", "not needed: `stepforge plan` lists every buffer"},
    {"memory_estimation.enable", "", "not needed: `stepforge plan` predicts the peak"},
    {"fault_tolerance.enable", "", kNotAvailable},
    {"lr", "optimizer.lr"},
    {"batch_size", "training.local_batch_size", "rows per micro-batch and rank"},
    {"max_seq_len", "training.seq_len"},
    {"grad_clip", "training.max_norm"},
    {"dtype", "precision.compute"},
    {"compile", "", kFused, ignore},
    // Hugging Face TrainingArguments
    {"output_dir", "run_dir"},
    {"overwrite_output_dir", "checkpoint.resume", "set it to false", ignore},
    {"do_train", "", "not a configuration key: use `stepforge train`", ignore},
    {"do_eval", "", "not a configuration key: use validation.freq or `stepforge eval`", ignore},
    {"per_device_train_batch_size", "training.local_batch_size"},
    {"per_device_eval_batch_size", "", "not needed: training.local_batch_size applies", ignore},
    {"gradient_accumulation_steps", "training.global_batch_size",
     "local_batch_size x ranks x accumulation steps", accumulation},
    {"learning_rate", "optimizer.lr"},
    {"weight_decay", "optimizer.weight_decay"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_epsilon", "optimizer.eps"},
    {"max_grad_norm", "training.max_norm"},
    {"num_train_epochs", "training.epochs", "", epochs},
    {"max_steps", "training.steps", "", positive},
    {"lr_scheduler_type", "lr_scheduler.decay_type",
     "linear, sqrt, cosine, polynomial, inverse_sqrt or constant", decay},
    {"warmup_ratio", "lr_scheduler.warmup_steps", "as a number of steps", warmup_share},
    {"warmup_steps", "lr_scheduler.warmup_steps"},
    {"logging_steps", "metrics.log_freq"},
    {"logging_dir", "", "not needed: everything is written to run_dir", ignore},
    {"logging_strategy", "", "not needed: metrics.log_freq counts steps", ignore},
    {"save_strategy", "checkpoint.enable", "true or false", strategy},
    {"save_steps", "checkpoint.interval"},
    {"save_total_limit", "checkpoint.keep_latest_k", "at least 2"},
    {"eval_strategy", "validation.freq", "a number of steps", strategy},
    {"evaluation_strategy", "validation.freq", "a number of steps", strategy},
    {"eval_steps", "validation.freq"},
    {"data_seed", "data.seed"},
    {"seed", "training.seed"},
    {"bf16", "precision.compute", "\"bf16\"", when_true, "\"bf16\""},
    {"fp16", "", "not available yet; precision.compute = \"bf16\" needs no loss scaling"},
    {"tf32", "", kNotAvailable},
    {"gradient_checkpointing", "activation_checkpoint.mode", "\"full\"", when_true, "\"full\""},
    {"dataloader_num_workers", "", "not needed: text is tokenized once and memory-mapped", ignore},
    {"preprocessing_num_workers", "", "not needed: tokenization uses all cores", ignore},
    {"ddp_timeout", "comm.train_timeout", "in seconds"},
    {"optim", "optimizer.name"},
    {"resume_from_checkpoint", "checkpoint.resume", "true or false; checkpoint.load_step chooses a step",
     ignore},
    {"report_to", "", "not available yet; metrics.jsonl and `stepforge plot` show the curves"},
    {"save_only_model", "", kNotAvailable},
    {"load_best_model_at_end", "", kNotAvailable},
    {"label_smoothing_factor", "training.label_smoothing"},
    {"deepspeed", "parallelism.data_parallel_shard_degree",
     "weights, gradients and moments are sharded by default", ignore},
    {"fsdp", "parallelism.data_parallel_shard_degree",
     "weights, gradients and moments are sharded by default", ignore},
    {"torch_compile", "", kFused, ignore},
    {"push_to_hub", "", kNotAvailable},
    {"group_by_length", "data.group_by_length"},
    {"packing", "data.packing", "\"best_fit\" or \"none\"", packing},
    // Hugging Face config.json
    {"hidden_size", "model.dim"},
    {"num_hidden_layers", "model.n_layers"},
    {"num_nextn_predict_layers", "model.n_mtp_layers"},
    {"num_attention_heads", "model.n_heads"},
    {"num_key_value_heads", "model.n_kv_heads"},
    {"intermediate_size", "model.ffn_dim"},
    {"num_experts", "model.n_experts"},
    {"num_local_experts", "model.n_experts"},
    {"num_experts_per_tok", "model.experts_per_token"},
    {"moe_intermediate_size", "model.moe_ffn_dim"},
    {"shared_expert_intermediate_size", "model.shared_expert_dim"},
    {"rms_norm_eps", "model.norm_eps"},
    {"max_position_embeddings", "model.max_position"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"model_type", "model.family"},
    // LLaMA-Factory
    {"model_name_or_path", "checkpoint.initial_load_path", "a Hugging Face folder on this machine", weights},
    {"stage", "data.packing", "only pre-training (\"pt\") and fine-tuning (\"sft\") are available yet",
     stage},
    {"finetuning_type", "", "not available yet; only \"full\" is", copy, "full"},
    {"template", "data.chat_template", "a Jinja file; without it the one beside the tokenizer is used",
     by_hand},
    {"lora_rank", "", kNotAvailable},
    {"lora_target", "", kNotAvailable},
    {"quantization_bit", "", kNotAvailable},
    {"dataset", "data.sources", kOneTablePerDataset, datasets},
    {"dataset_dir", "data.sources", kOneTablePerDataset, ignore},
    {"eval_dataset", "data.validation", kOneTablePerDataset, datasets},
    {"neat_packing", "data.packing", "\"best_fit\"", when_true, "best_fit"},
    {"mask_history", "data.sources", "loss_on = \"last\" in each source", ignore},
    {"train_on_prompt", "data.sources", "loss_on = \"all\" in each source", ignore},
    {"cutoff_len", "training.seq_len"},
    {"val_size", "data.validation_fraction", "a fraction below 1"},
    {"max_samples", "", kNotAvailable},
    {"overwrite_cache", "", "not needed: the cache is updated when the data changes", ignore},
    {"plot_loss", "", "not a configuration key: use `stepforge plot`", ignore},
    {"flash_attn", "", kFused, ignore},
    // Megatron-LM
    {"micro_batch_size", "training.local_batch_size"},
    {"train_iters", "training.steps"},
    {"seq_length", "training.seq_len"},
    {"min_lr", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", min_lr},
    {"lr_decay_style", "lr_scheduler.decay_type", "", decay},
    {"lr_decay_iters", "lr_scheduler.total_steps"},
    {"lr_warmup_iters", "lr_scheduler.warmup_steps"},
    {"lr_warmup_fraction", "lr_scheduler.warmup_steps", "as a number of steps", warmup_share},
    {"clip_grad", "training.max_norm"},
    {"adam_eps", "optimizer.eps"},
    {"num_layers", "model.n_layers"},
    {"mtp_num_layers", "model.n_mtp_layers"},
    {"mtp_loss_scaling_factor", "model.mtp_loss_weight"},
    {"ffn_hidden_size", "model.ffn_dim"},
    {"num_query_groups", "model.n_kv_heads"},
    {"kv_channels", "model.head_dim"},
    {"norm_epsilon", "model.norm_eps"},
    {"rotary_base", "model.rope_theta"},
    {"hidden_dropout", "model.dropout"},
    {"attention_dropout", "", kNotAvailable},
    {"untie_embeddings_and_output_weights", "model.tie_embeddings", "the opposite value", negate},
    {"data_path", "data.sources", kOneTablePerSource, sources},
    {"split", "data.split", "the same text"},
    {"tokenizer_model", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"save_interval", "checkpoint.interval"},
    {"eval_interval", "validation.freq"},
    {"eval_iters", "validation.steps"},
    {"log_interval", "metrics.log_freq"},
    {"tensor_model_parallel_size", "parallelism.tensor_parallel_degree"},
    {"pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree"},
    {"context_parallel_size", "parallelism.context_parallel_degree"},
    {"cp_comm_type", "parallelism.context_parallel_method",
     "\"allgather\", \"ring\", \"ulysses\" or \"hybrid\"", by_hand},
    {"expert_model_parallel_size", "parallelism.expert_parallel_degree"},
    {"moe_token_dispatcher_type", "parallelism.expert_parallel_dispatcher", "\"alltoall\" or \"allgather\""},
    {"expert_tensor_parallel_size", "parallelism.expert_tensor_parallel_degree"},
    {"sequence_parallel", "parallelism.enable_sequence_parallel"},
    {"use_distributed_optimizer", "", "not needed: moments are always sharded", ignore},
    {"recompute_granularity", "activation_checkpoint.mode", "\"full\" or \"regions\"", by_hand},
    {"recompute_num_layers", "activation_checkpoint.every_n", "with mode = \"every_n\"", by_hand},
    {"exit_duration_in_mins", "", kNotAvailable},
    // XTuner
    {"total_step", "training.steps"},
    {"total_epoch", "training.epochs", "", epochs},
    {"pack_max_length", "training.seq_len"},
    {"work_dir", "run_dir"},
    {"load_from", "checkpoint.initial_load_path"},
    {"hf_interval", "checkpoint.last_save_in_hf", "the last step only", by_hand},
    {"hf_max_keep", "", kNotAvailable},
    {"checkpoint_interval", "checkpoint.interval"},
    {"checkpoint_maxkeep", "checkpoint.keep_latest_k", "at least 2"},
    {"snapshot_interval", "", kNotAvailable},
    {"sp_size", "", kNotAvailable},
    {"tp_size", "", kNotAvailable},
    {"ep_size", "", kNotAvailable},
    {"param_dtype", "precision.compute"},
    {"reduce_dtype", "precision.reduce"},
    {"recompute_ratio", "activation_checkpoint.every_n", "with mode = \"every_n\"", by_hand},
});

}  // namespace

std::span<const ForeignKey> all_foreign_keys() {
  return kForeignKeys;
}

const ForeignKey* find_foreign_key(std::string_view name) {
  std::string key(name.starts_with("--") ? name.substr(2) : name);
  std::replace(key.begin(), key.end(), '-', '_');
  const auto find = [](std::string_view wanted) -> const ForeignKey* {
    const auto* const found = std::find_if(kForeignKeys.begin(), kForeignKeys.end(),
                                           [&](const ForeignKey& entry) { return entry.name == wanted; });
    return found == kForeignKeys.end() ? nullptr : found;
  };
  const ForeignKey* found = find(key);
  return found != nullptr ? found : find(std::string_view(key).substr(key.rfind('.') + 1));
}

std::string foreign_hint(std::string_view name) {
  const ForeignKey* key = find_foreign_key(name);
  if (key == nullptr) return "";
  if (key->ours.empty()) return std::string(key->note);
  return format("use {}{}", key->ours, key->note.empty() ? "" : format(" ({})", key->note));
}

}  // namespace stepforge
