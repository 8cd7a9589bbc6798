// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/foreign_keys.h"

#include <algorithm>
#include <array>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view later = "not available yet";
constexpr std::string_view weights_are_fp32 =
    "not needed: weights are always kept in fp32; precision.compute is the format of the computation";
constexpr std::string_view one_table = "one table { path = \"...\" } per source";
constexpr std::string_view kernels = "not needed: the kernels are fused already";
constexpr std::string_view trace = "not a setting: use `stepforge train --trace FILE`";

constexpr auto foreign_keys = std::to_array<ForeignKey>({
    // torchtitan
    {"job.dump_folder", "run_dir"},
    {"job.description", "", "not needed", ignore},
    {"job.print_config", "debug.print_config"},
    {"model.name", "preset", "such as preset = \"llama3-8b\"; `stepforge config presets` lists them", preset},
    {"model.flavor", "preset", "such as preset = \"llama3-8b\"; `stepforge config presets` lists them",
     ignore},
    {"model.hf_assets_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.tokenizer_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.converters", "", later},
    {"model.path", "checkpoint.initial_load_path"},
    {"optimizer.implementation", "", kernels, ignore},
    {"optimizer.early_step_in_backward", "", later},
    {"optimizer.betas", "optimizer.beta1", "and optimizer.beta2", by_hand},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor", "as a share of the peak rate"},
    {"lr_scheduler.type", "lr_scheduler.decay_type", "", decay},
    {"training.dataset", "data.sources", one_table, by_hand},
    {"training.dataset_path", "data.sources", one_table, sources},
    {"training.dtype", "", weights_are_fp32, ignore},
    {"training.mixed_precision_param", "precision.compute"},
    {"training.mixed_precision_reduce", "precision.reduce"},
    {"training.enable_cpu_offload", "parallelism.fsdp_cpu_offload"},
    {"training.gc_freq", "", "not needed: there is no garbage collector", ignore},
    {"training.compile", "", kernels, ignore},
    {"training.deterministic", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     by_hand},
    {"debug.deterministic", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     by_hand},
    {"debug.seed", "training.seed"},
    {"precision.dtype", "precision.compute"},
    {"data.path", "data.sources", one_table, sources},
    {"tokenizer.name", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"compile.enable", "", kernels, ignore},
    {"compile.components", "", kernels, ignore},
    {"compile.backend", "", kernels, ignore},
    {"parallelism.tensor_parallel_degree", "", later},
    {"parallelism.pipeline_parallel_degree", "", later},
    {"parallelism.pipeline_parallel_schedule", "", later},
    {"parallelism.context_parallel_degree", "", later},
    {"parallelism.expert_parallel_degree", "", later},
    {"parallelism.expert_tensor_parallel_degree", "", later},
    {"parallelism.enable_async_tensor_parallel", "", later},
    {"parallelism.disable_loss_parallel", "", later},
    {"activation_checkpoint.mode", "activation_checkpoint.mode", "", recompute},
    {"activation_checkpoint.selective_ac_option", "activation_checkpoint.every_n", "with mode = \"every_n\"",
     ignore},
    {"checkpoint.enable_checkpoint", "checkpoint.enable"},
    {"checkpoint.async_mode", "checkpoint.async", "true or false", async},
    {"checkpoint.initial_load_in_hf", "", "not needed: a Hugging Face folder is recognised", ignore},
    {"checkpoint.last_save_model_only", "", later},
    {"checkpoint.enable_first_step_checkpoint", "", later},
    {"checkpoint.create_seed_checkpoint", "", "not needed: any number of ranks starts from the same weights"},
    {"checkpoint.exclude_from_loading", "", later},
    {"checkpoint.keep", "checkpoint.keep_latest_k"},
    {"validation.enable", "validation.freq", "a number of steps; 0 = off", strategy},
    {"validation.dataset", "data.validation", one_table, by_hand},
    {"validation.dataset_path", "data.validation", one_table, sources},
    {"validation.local_batch_size", "", "not needed: it is training.local_batch_size", ignore},
    {"validation.seq_len", "", "not needed: it is training.seq_len", ignore},
    {"comm.init_timeout_seconds", "comm.init_timeout"},
    {"comm.train_timeout_seconds", "comm.train_timeout"},
    {"comm.trace_buf_size", "", "not needed", ignore},
    {"metrics.enable_tensorboard", "",
     "not available yet; metrics.jsonl and `stepforge plot` show the curves"},
    {"metrics.enable_wandb", "", "not available yet; metrics.jsonl and `stepforge plot` show the curves"},
    {"metrics.save_tb_folder", "", later, ignore},
    {"metrics.disable_color_printing", "", "not needed: colours are used on a terminal only", ignore},
    {"profiling.enable_profiling", "", trace},
    {"profiling.profile_freq", "", trace, ignore},
    {"profiling.save_traces_folder", "", trace, ignore},
    {"profiling.enable_memory_snapshot", "", "not needed: `stepforge plan` lists every buffer"},
    {"memory_estimation.enable", "", "not needed: `stepforge plan` predicts the peak"},
    {"fault_tolerance.enable", "", later},
    {"lr", "optimizer.lr"},
    {"batch_size", "training.local_batch_size", "rows of one micro-batch on one rank"},
    {"max_seq_len", "training.seq_len"},
    {"grad_clip", "training.max_norm"},
    {"dtype", "precision.compute"},
    {"compile", "", kernels, ignore},
    // Hugging Face TrainingArguments
    {"output_dir", "run_dir"},
    {"overwrite_output_dir", "checkpoint.resume", "set it to false", ignore},
    {"do_train", "", "not a setting: use `stepforge train`", ignore},
    {"do_eval", "", "not a setting: use validation.freq or `stepforge eval`", ignore},
    {"per_device_train_batch_size", "training.local_batch_size"},
    {"per_device_eval_batch_size", "", "not needed: it is training.local_batch_size", ignore},
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
    {"lr_scheduler_type", "lr_scheduler.decay_type", "linear, sqrt or cosine", decay},
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
    {"tf32", "", later},
    {"gradient_checkpointing", "activation_checkpoint.mode", "\"full\"", when_true, "\"full\""},
    {"dataloader_num_workers", "", "not needed: text is tokenized once and memory-mapped", ignore},
    {"preprocessing_num_workers", "", "not needed: tokenization uses all cores", ignore},
    {"ddp_timeout", "comm.train_timeout", "in seconds"},
    {"optim", "optimizer.name"},
    {"resume_from_checkpoint", "checkpoint.resume", "true or false; checkpoint.load_step chooses a step",
     ignore},
    {"report_to", "", "not available yet; metrics.jsonl and `stepforge plot` show the curves"},
    {"save_only_model", "", later},
    {"load_best_model_at_end", "", later},
    {"label_smoothing_factor", "", later},
    {"deepspeed", "parallelism.data_parallel_shard_degree",
     "weights, gradients and moments are sharded anyway", ignore},
    {"fsdp", "parallelism.data_parallel_shard_degree", "weights, gradients and moments are sharded anyway",
     ignore},
    {"torch_compile", "", kernels, ignore},
    {"push_to_hub", "", later},
    {"group_by_length", "", "not needed: documents are packed into full rows", ignore},
    {"packing", "", "not needed: documents are always packed into full rows", ignore},
    // Hugging Face config.json
    {"hidden_size", "model.dim"},
    {"num_hidden_layers", "model.n_layers"},
    {"num_attention_heads", "model.n_heads"},
    {"num_key_value_heads", "model.n_kv_heads"},
    {"intermediate_size", "model.ffn_dim"},
    {"rms_norm_eps", "model.norm_eps"},
    {"max_position_embeddings", "model.max_position"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"model_type", "model.family"},
    // LLaMA-Factory
    {"model_name_or_path", "checkpoint.initial_load_path", "a Hugging Face folder on this machine", weights},
    {"stage", "", "not available yet; there is only pre-training (\"pt\")", copy, "pt"},
    {"finetuning_type", "", "not available yet; all weights are trained (\"full\")", copy, "full"},
    {"template", "", "not available yet: text is trained on as it is"},
    {"lora_rank", "", later},
    {"lora_target", "", later},
    {"quantization_bit", "", later},
    {"dataset", "data.sources", one_table, by_hand},
    {"dataset_dir", "data.sources", one_table, ignore},
    {"eval_dataset", "data.validation", one_table, by_hand},
    {"cutoff_len", "training.seq_len"},
    {"val_size", "data.validation_fraction", "a share below 1"},
    {"max_samples", "", later},
    {"overwrite_cache", "", "not needed: the cache follows the data", ignore},
    {"plot_loss", "", "not a setting: use `stepforge plot`", ignore},
    {"flash_attn", "", kernels, ignore},
    // Megatron-LM
    {"micro_batch_size", "training.local_batch_size"},
    {"train_iters", "training.steps"},
    {"seq_length", "training.seq_len"},
    {"min_lr", "lr_scheduler.min_lr_factor", "as a share of the peak rate", min_lr},
    {"lr_decay_style", "lr_scheduler.decay_type", "", decay},
    {"lr_decay_iters", "lr_scheduler.total_steps"},
    {"lr_warmup_iters", "lr_scheduler.warmup_steps"},
    {"lr_warmup_fraction", "lr_scheduler.warmup_steps", "as a number of steps", warmup_share},
    {"clip_grad", "training.max_norm"},
    {"adam_eps", "optimizer.eps"},
    {"num_layers", "model.n_layers"},
    {"ffn_hidden_size", "model.ffn_dim"},
    {"num_query_groups", "model.n_kv_heads"},
    {"kv_channels", "model.head_dim"},
    {"norm_epsilon", "model.norm_eps"},
    {"rotary_base", "model.rope_theta"},
    {"hidden_dropout", "model.dropout"},
    {"attention_dropout", "", later},
    {"untie_embeddings_and_output_weights", "model.tie_embeddings", "the opposite value", negate},
    {"data_path", "data.sources", one_table, sources},
    {"split", "data.validation_fraction", "the second number as a share", by_hand},
    {"tokenizer_model", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"save_interval", "checkpoint.interval"},
    {"eval_interval", "validation.freq"},
    {"eval_iters", "validation.steps"},
    {"log_interval", "metrics.log_freq"},
    {"tensor_model_parallel_size", "", later},
    {"pipeline_model_parallel_size", "", later},
    {"context_parallel_size", "", later},
    {"expert_model_parallel_size", "", later},
    {"sequence_parallel", "", later},
    {"use_distributed_optimizer", "", "not needed: moments are always sharded", ignore},
    {"recompute_granularity", "activation_checkpoint.mode", "\"full\" or \"regions\"", by_hand},
    {"recompute_num_layers", "activation_checkpoint.every_n", "with mode = \"every_n\"", by_hand},
    {"exit_duration_in_mins", "", later},
    // XTuner
    {"total_step", "training.steps"},
    {"total_epoch", "training.epochs", "", epochs},
    {"pack_max_length", "training.seq_len"},
    {"work_dir", "run_dir"},
    {"load_from", "checkpoint.initial_load_path"},
    {"hf_interval", "checkpoint.last_save_in_hf", "the last step only", by_hand},
    {"hf_max_keep", "", later},
    {"checkpoint_interval", "checkpoint.interval"},
    {"checkpoint_maxkeep", "checkpoint.keep_latest_k", "at least 2"},
    {"snapshot_interval", "", later},
    {"sp_size", "", later},
    {"tp_size", "", later},
    {"ep_size", "", later},
    {"param_dtype", "precision.compute"},
    {"reduce_dtype", "precision.reduce"},
    {"recompute_ratio", "activation_checkpoint.every_n", "with mode = \"every_n\"", by_hand},
});

}  // namespace

std::span<const ForeignKey> all_foreign_keys() {
  return foreign_keys;
}

const ForeignKey* find_foreign_key(std::string_view name) {
  std::string key(name.starts_with("--") ? name.substr(2) : name);
  std::replace(key.begin(), key.end(), '-', '_');
  const auto find = [](std::string_view wanted) -> const ForeignKey* {
    const auto* const found = std::find_if(foreign_keys.begin(), foreign_keys.end(),
                                           [&](const ForeignKey& entry) { return entry.name == wanted; });
    return found == foreign_keys.end() ? nullptr : found;
  };
  const ForeignKey* found = find(key);
  return found != nullptr ? found : find(std::string_view(key).substr(key.rfind('.') + 1));
}

std::string foreign_hint(std::string_view name) {
  const ForeignKey* key = find_foreign_key(name);
  if (key == nullptr) return "";
  if (key->ours.empty()) return std::string(key->note);
  return format("here it is {}{}", key->ours, key->note.empty() ? "" : format(" ({})", key->note));
}

}  // namespace stepforge
