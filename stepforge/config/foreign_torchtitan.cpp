// SPDX-License-Identifier: Apache-2.0
// torchtitan: its TOML, or its Python configuration written as JSON.
#include <algorithm>
#include <array>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/presets.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kPresetExample =
    "such as preset = \"llama3-8b\"; `stepforge config presets` lists them";

constexpr auto kTorchtitanKeys = std::to_array<ForeignKey>({
    {"job.dump_folder", "run_dir"},
    {"dump_folder", "run_dir"},
    {"job.description", "run_dir", "the folder names the run", needless},
    {"job.print_config", "debug.print_config"},
    {"job.print_args", "debug.print_config"},
    {"job.config_file", "", "the file itself", needless},
    {"job.custom_config_module", "experimental.custom_import", "plug-ins are shared libraries", lost},
    {"model.name", "preset", kPresetExample, read},
    {"model.flavor", "preset", kPresetExample, read},
    {"model.hf_assets_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.tokenizer_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model.converters", "", kNoQuantization, refused},
    {"model.print_after_conversion", "", "`stepforge plan` shows the model", needless},
    {"float8.*", "", "read only with model.converters", needless},
    {"mx.*", "", "read only with model.converters", needless},
    {"quantize.*", "", "read only with model.converters", needless},
    {"optimizer.name", "optimizer.name", "", optimizer},
    {"optimizer.implementation", "", kFusedKernels, needless},
    {"optimizer.fused", "", kFusedKernels, needless},
    {"optimizer.early_step_in_backward", "", kNotAvailable, lost},
    {"optimizer.betas", "optimizer.beta1", "and optimizer.beta2", read},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"lr_scheduler.type", "lr_scheduler.decay_type", "", decay},
    {"training.dataset", "data.sources", kOneTablePerSource, read},
    {"training.dataset_path", "data.sources", kOneTablePerSource, read},
    {"training.batch_size", "training.local_batch_size", "rows per micro-batch and rank"},
    {"training.warmup_steps", "lr_scheduler.warmup_steps"},
    {"training.data_parallel_degree", "parallelism.data_parallel_shard_degree"},
    {"training.dtype", "precision.compute", "weights are always kept in fp32", lost, "float32|fp32"},
    {"training.mixed_precision_param", "precision.compute"},
    {"training.mixed_precision_reduce", "precision.reduce"},
    {"training.enable_cpu_offload", "parallelism.fsdp_cpu_offload"},
    {"training.gc_freq", "", "there is no garbage collector", needless},
    {"training.gc_debug", "", "there is no garbage collector", needless},
    {"training.compile", "", kFusedKernels, needless},
    {"training.deterministic", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     lost},
    {"training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"},
    {"training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"},
    {"training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"},
    {"experimental.context_parallel_degree", "parallelism.context_parallel_degree"},
    {"experimental.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    {"experimental.custom_args_module", "experimental.custom_import", "plug-ins are shared libraries", lost},
    {"experimental.custom_import", "experimental.custom_import", "plug-ins are shared libraries", lost},
    {"debug.deterministic", "training.reduction", "\"ordered\" gives the same bits on any number of ranks",
     lost},
    {"debug.deterministic_warn_only", "", "read only with deterministic", needless},
    {"debug.moe_force_load_balance", "", kNotAvailable, lost},
    {"debug.seed", "training.seed"},
    {"compile.*", "", kFusedKernels, needless},
    {"parallelism.context_parallel_rotate_method", "parallelism.context_parallel_method",
     "\"allgather\", \"ring\", \"ulysses\" or \"hybrid\"", read},
    {"parallelism.context_parallel_load_balancer", "parallelism.context_parallel_load_balance",
     "\"head_tail\" or \"none\"", read},
    {"parallelism.pipeline_parallel_split_points", "parallelism.pipeline_parallel_stages",
     "one table { blocks = [...] } per stage", lost},
    {"parallelism.module_fqns_per_model_part", "parallelism.pipeline_parallel_stages",
     "one table { blocks = [...] } per stage", lost},
    {"parallelism.pipeline_parallel_expert_parallel_overlap", "parallelism.expert_parallel_overlap"},
    {"parallelism.expert_parallel_comm_backend", "parallelism.expert_parallel_dispatcher",
     "\"alltoall\" or \"allgather\"", lost, "standard"},
    {"parallelism.enable_compiled_autograd", "", kFusedKernels, needless},
    {"activation_checkpoint.mode", "activation_checkpoint.mode", "", read},
    {"activation_checkpoint.selective_ac_option", "activation_checkpoint.every_n", "with mode = \"every_n\"",
     read},
    {"activation_checkpoint.memory_budget", "activation_checkpoint.memory_budget", "with mode = \"budget\"",
     read},
    {"activation_checkpoint.visualize_memory_budget_pareto", "", "`stepforge plan` shows the choice",
     needless},
    {"activation_checkpoint.*", "activation_checkpoint.regions",
     "read only with selection of single operations", needless},
    {"checkpoint.enable_checkpoint", "checkpoint.enable"},
    {"checkpoint.async_mode", "checkpoint.async", "true or false", read},
    {"checkpoint.initial_load_in_hf", "", "Hugging Face folders are recognized", needless},
    {"checkpoint.initial_load_in_hf_quantized", "", kNoQuantization, refused},
    {"checkpoint.load_only", "checkpoint.enable", "false", lost},
    {"checkpoint.last_save_model_only", "", "not available yet: checkpoints hold all that a resume needs",
     lost},
    {"checkpoint.model_weights_only", "", "not available yet: checkpoints hold all that a resume needs",
     lost},
    {"checkpoint.enable_first_step_checkpoint", "", kNotAvailable, lost},
    {"checkpoint.create_seed_checkpoint", "",
     "not available yet; the initial weights are the same on any number of ranks", lost},
    {"checkpoint.exclude_from_loading", "checkpoint.load",
     "which of optimizer, schedule, data and counters are loaded", read},
    {"checkpoint.keep", "checkpoint.keep_latest_k"},
    {"checkpoint.interval_type", "checkpoint.interval", "in steps", lost, "steps"},
    {"validation.enable", "validation.freq", "a number of steps; 0 = off", read},
    {"validation.enabled", "validation.freq", "a number of steps; 0 = off", read},
    {"validation.freq", "validation.freq", "", read},
    {"validation.steps", "validation.steps", "", read},
    {"validation.dataset", "data.validation", kOneTablePerSource, read},
    {"validation.dataset_path", "data.validation", kOneTablePerSource, read},
    {"validation.local_batch_size", "", "validation has the rows of training.local_batch_size", needless},
    {"validation.seq_len", "", "validation has rows of training.seq_len", needless},
    {"comm.init_timeout_seconds", "comm.init_timeout"},
    {"comm.train_timeout_seconds", "comm.train_timeout"},
    {"comm.trace_buf_size", "", "a rank that waits too long names the operation", needless},
    {"comm.save_traces_folder", "", "a rank that waits too long names the operation", needless},
    {"comm.mode", "comm.backend", "\"auto\", \"shared_memory\", \"gloo\" or \"nccl\"", lost, "default"},
    {"metrics.enable_tensorboard", "", kCurvesElsewhere, lost},
    {"metrics.enable_wandb", "", kCurvesElsewhere, lost},
    {"metrics.save_tb_folder", "", "read only with enable_tensorboard", needless},
    {"metrics.save_for_all_ranks", "", "each rank has a log of its own", needless},
    {"metrics.rank_0_only", "", "each rank has a log of its own", needless},
    {"metrics.enable_color_printing", "", "colors are only used on a terminal", needless},
    {"metrics.disable_color_printing", "", "colors are only used on a terminal", needless},
    {"profiling.enable_profiling", "", kTraceOption, lost},
    {"profiling.profile_freq", "", kTraceOption, needless},
    {"profiling.save_traces_folder", "", kTraceOption, needless},
    {"profiling.profiler_active", "", kTraceOption, needless},
    {"profiling.profiler_warmup", "", kTraceOption, needless},
    {"profiling.enable_memory_snapshot", "", "not available yet; `stepforge plan` lists every buffer", lost},
    {"profiling.save_memory_snapshot_folder", "", "read only with enable_memory_snapshot", needless},
    {"memory_estimation.enable", "", "`stepforge plan` predicts the peak", needless},
    {"memory_estimation.enabled", "", "`stepforge plan` predicts the peak", needless},
    {"memory_estimation.disable_fake_mode", "", "`stepforge plan` predicts the peak", needless},
    {"fault_tolerance.enable", "", kNotAvailable, lost},
    {"fault_tolerance.*", "", "read only with fault_tolerance.enable", needless},
});

constexpr auto kTorchtitanDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "8e-4"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.95"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.1"},
    {"optimizer.decay_all", "true"},
    {"training.seq_len", "2048"},
    {"training.local_batch_size", "8"},
    {"training.steps", "10000"},
    {"training.max_norm", "1.0"},
    {"precision.compute", "bf16"},
    {"precision.reduce", "fp32"},
    {"lr_scheduler.warmup_steps", "200"},
    {"lr_scheduler.decay_type", "linear"},
    {"lr_scheduler.min_lr_factor", "0.0"},
    {"activation_checkpoint.mode", "every_n"},
    {"activation_checkpoint.every_n", "2"},
    {"checkpoint.enable", "false"},
    {"checkpoint.async", "false"},
    {"metrics.log_freq", "10"},
});

void convert_flavor(ForeignConversion& conversion) {
  const ConfigValue* name = conversion.find("model.name");
  const ConfigValue* flavor = conversion.find("model.flavor");
  if (name == nullptr) return;
  std::string preset = lower_text(*name) + (flavor != nullptr ? "-" + lower_text(*flavor) : "");
  if (preset == "deepseek_v3-671b") preset = "deepseek-v3";
  if (find_preset(preset) != nullptr) return conversion.set("model.name", "preset", preset);
  const std::string why = format("there is no preset {}; set the fields of [model]", preset);
  conversion.lose("model.name", why);
  if (flavor != nullptr) conversion.lose("model.flavor", why);
}

void convert_recomputation(ForeignConversion& conversion) {
  constexpr std::string_view key = "activation_checkpoint.mode";
  constexpr std::string_view option_key = "activation_checkpoint.selective_ac_option";
  constexpr std::string_view budget_key = "activation_checkpoint.memory_budget";
  const ConfigValue* mode = conversion.find(key);
  const ConfigValue* option = conversion.find(option_key);
  const std::string name = mode == nullptr ? "selective" : lower_text(*mode);
  if (name == "memory_budget") {
    conversion.set(key, key, "budget");
    if (const auto budget = conversion.number(budget_key))
      conversion.set(budget_key, budget_key, toml_float(*budget));
  } else if (conversion.has(budget_key)) {
    conversion.need_nothing(budget_key, "read only with mode = \"memory_budget\"");
  }
  if (name != "selective") {
    if (option != nullptr) conversion.need_nothing(option_key, "read only with mode = \"selective\"");
    if (name != "memory_budget") conversion.set(key, key, name);
    return;
  }
  if (mode == nullptr && option == nullptr) return;
  const std::string every_n = option == nullptr                         ? "2"
                              : option->kind == ConfigValue::Kind::text ? option->text
                                                                        : toml_value(*option);
  if (every_n == "op") {
    conversion.set(key, key, "regions", "similar to its selection of single operations");
    return conversion.set(option_key, "activation_checkpoint.regions", "[\"mlp\"]");
  }
  conversion.set(key, key, "every_n");
  conversion.set(option_key, "activation_checkpoint.every_n", every_n);
}

void convert_torchtitan_data(ForeignConversion& conversion, std::string_view section, std::string_view ours) {
  const std::string path = format("{}.dataset_path", section);
  const std::string name = format("{}.dataset", section);
  const bool has_name = conversion.has(name);
  if (!conversion.has(path)) {
    if (has_name) conversion.lose(name, format("name the files: {} takes {}", ours, kOneTablePerSource));
    return;
  }
  convert_paths(conversion, path, ours);
  if (has_name) conversion.need_nothing(name, "dataset_path names the files");
}

void convert_excluded(ForeignConversion& conversion) {
  constexpr std::string_view key = "checkpoint.exclude_from_loading";
  const ConfigValue* excluded = conversion.find(key);
  if (excluded == nullptr) return;
  for (const std::string& part : names_in(*excluded)) {
    const std::string_view ours = part == "optimizer"      ? "optimizer"
                                  : part == "lr_scheduler" ? "schedule"
                                  : part == "dataloader"   ? "data"
                                  : part == "train_state"  ? "counters"
                                                           : "";
    if (ours.empty()) return conversion.lose(key, "optimizer, lr_scheduler, dataloader or train_state");
    conversion.set(key, format("checkpoint.load.{}", ours), "false");
  }
}

void finish_torchtitan(ForeignConversion& conversion) {
  convert_flavor(conversion);
  convert_betas(conversion, "optimizer.betas");
  convert_recomputation(conversion);
  convert_torchtitan_data(conversion, "training", "data.sources");
  convert_torchtitan_data(conversion, "validation", "data.validation");
  convert_excluded(conversion);
  // Its lr_min was a fraction of the peak rate.
  if (const auto factor = conversion.number("lr_scheduler.lr_min"))
    conversion.set("lr_scheduler.lr_min", "lr_scheduler.min_lr_factor", toml_float(*factor));
  if (const ConfigValue* mode = conversion.find("checkpoint.async_mode"))
    conversion.set("checkpoint.async_mode", "checkpoint.async", is_off(*mode, "") ? "false" : "true");
  constexpr std::string_view kRotate = "parallelism.context_parallel_rotate_method";
  if (const std::string method = conversion.text(kRotate); !method.empty())
    conversion.set(kRotate, "parallelism.context_parallel_method", method == "alltoall" ? "ring" : method);
  constexpr std::string_view kBalancer = "parallelism.context_parallel_load_balancer";
  if (const std::string balancer = conversion.text(kBalancer); !balancer.empty())
    conversion.set(kBalancer, "parallelism.context_parallel_load_balance",
                   balancer == "headtail" ? "head_tail" : balancer);
  const std::string_view enable =
      conversion.has("validation.enabled") ? "validation.enabled" : "validation.enable";
  if (!conversion.is_true(enable)) {
    if (conversion.has(enable)) conversion.set(enable, "validation.freq", "0");
    for (const std::string_view key : {"validation.freq", "validation.steps"})
      if (conversion.has(key)) conversion.need_nothing(key, "validation is off there");
    return;
  }
  conversion.set("validation.freq", "validation.freq",
                 number_text(conversion.number("validation.freq").value_or(10)));
  if (const auto steps = conversion.number("validation.steps"))
    conversion.set("validation.steps", "validation.steps", number_text(*steps));
}

}  // namespace

const ForeignTrainer& torchtitan_trainer() {
  static constexpr ForeignTrainer trainer{.name = "torchtitan",
                                          .title = "torchtitan",
                                          .keys = kTorchtitanKeys,
                                          .inherited = {},
                                          .defaults = kTorchtitanDefaults,
                                          .finish = finish_torchtitan,
                                          .has_our_names = true};
  return trainer;
}

}  // namespace stepforge
