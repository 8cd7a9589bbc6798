// SPDX-License-Identifier: Apache-2.0
// XTuner V1: the values of its TrainerConfig, written as JSON.
#include <array>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kOfTheFolder = "the folder of load_from has its configuration";

constexpr auto kXtunerKeys = std::to_array<ForeignKey>({
    {"load_from", "model.from", kModelFolder, model},
    {"tokenizer_path", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"model_cfg.*", "model.from", kOfTheFolder, needless},
    {"model_cfg", "model.from", kOfTheFolder, needless},
    {"dataset_cfg", "data.sources", kOneTablePerSource, read},
    {"dataloader_cfg.dataset_config_list", "data.sources", kOneTablePerSource, read},
    {"dataloader_cfg.pack_max_length", "training.seq_len"},
    {"dataloader_cfg.pack_level", "data.packing", "\"best_fit\", \"hard\" or \"none\"", read},
    {"dataloader_cfg.group_by_length", "data.group_by_length"},
    {"dataloader_cfg.pack_to_max_length", "", "rows are always full", needless},
    {"dataloader_cfg.global_pack", "", "rows are packed over the whole data set", needless},
    {"dataloader_cfg.pack_extra_buffer_size", "", "rows are packed over the whole data set", needless},
    {"dataloader_cfg.pack_chunk_size", "", "rows are packed over the whole data set", needless},
    {"dataloader_cfg.*", "", "text is tokenized once and memory-mapped", needless},
    {"optim_cfg.lr", "optimizer.lr"},
    {"optim_cfg.weight_decay", "optimizer.weight_decay"},
    {"optim_cfg.betas", "optimizer.beta1", "and optimizer.beta2", read},
    {"optim_cfg.eps", "optimizer.eps"},
    {"optim_cfg.max_grad_norm", "training.max_norm"},
    {"optim_cfg.momentum", "optimizer.momentum"},
    {"optim_cfg.skip_grad_norm_threshold", "", kNotAvailable, lost},
    {"optim_cfg.foreach", "", kFusedKernels, needless},
    {"optim_cfg.fused", "", kFusedKernels, needless},
    {"lr_cfg.lr_type", "lr_scheduler.decay_type", "", decay},
    {"lr_cfg.warmup_ratio", "lr_scheduler.warmup_ratio", "", read},
    {"lr_cfg.lr_min", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"loss_cfg.mode", "", kFusedKernels, needless},
    {"loss_cfg.chunk_size", "training.loss_chunk"},
    {"loss_cfg.loss_reduction", "training.loss_reduction"},
    {"loss_cfg.*", "", kFusedKernels, needless},
    {"fsdp_cfg.tp_size", "parallelism.tensor_parallel_degree"},
    {"fsdp_cfg.ep_size", "parallelism.expert_parallel_degree"},
    {"fsdp_cfg.param_dtype", "precision.compute", "", read},
    {"fsdp_cfg.reduce_dtype", "precision.reduce", "", read},
    {"fsdp_cfg.cpu_offload", "parallelism.fsdp_cpu_offload"},
    {"fsdp_cfg.recompute_ratio", "activation_checkpoint.every_n", "with mode = \"every_n\"", read},
    {"fsdp_cfg.hsdp_sharding_size", "parallelism.data_parallel_shard_degree"},
    {"fsdp_cfg.enable_autocast", "precision.compute", "", needless},
    {"fsdp_cfg.*", "parallelism.data_parallel_shard_degree", kShardedByDefault, needless},
    {"float8_cfg", "", kNoQuantization, refused},
    {"float8_cfg.*", "", kNoQuantization, refused},
    {"global_batch_size", "training.global_batch_size", "rows of all ranks", read},
    {"work_dir", "run_dir"},
    {"log_dir", "run_dir", "everything is written to run_dir", needless},
    {"sp_size", "parallelism.context_parallel_degree", "with context_parallel_method = \"ulysses\"", read},
    {"tp_size", "parallelism.tensor_parallel_degree"},
    {"ep_size", "parallelism.expert_parallel_degree"},
    {"total_step", "training.steps", "", read},
    {"total_epoch", "training.epochs", "", read},
    {"epoch_num", "training.epochs", "", read},
    {"auto_resume", "checkpoint.resume"},
    {"resume_cfg", "checkpoint.load_step", "a run continues by itself; load_step chooses a checkpoint", lost},
    {"load_checkpoint_cfg.*", "checkpoint.load_step",
     "a run continues by itself; load_step chooses a checkpoint", needless},
    {"strict_load", "checkpoint.strict"},
    {"checkpoint_interval", "checkpoint.interval", "", positive},
    {"checkpoint_maxkeep", "checkpoint.keep_latest_k", "at least 2", read},
    {"snapshot_interval", "checkpoint.interval", "not available yet as a second interval", lost},
    {"hf_interval", "checkpoint.last_save_in_hf", "the last step only", read},
    {"hf_max_keep", "checkpoint.last_save_in_hf", "the last step only", needless},
    {"async_checkpoint", "checkpoint.async"},
    {"async_hf_export", "checkpoint.async", "", needless},
    {"skip_checkpoint_validation", "", "checkpoints are always verified", needless},
    {"patch_for_dcp_finish", "", "there is one checkpoint format", needless},
    {"check_health_interval", "", kNotAvailable, lost},
    {"exp_tracker", "", kCurvesElsewhere, lost, "jsonl"},
    {"profile_step", "", kTraceOption, lost},
    {"profile_time", "", kTraceOption, needless},
    {"profile_memory", "", kTraceOption, needless},
    {"intra_layer_micro_batch", "parallelism.expert_parallel_overlap", "", lost, "1"},
    {"seed", "training.seed"},
    {"dist_backend", "comm.backend", "\"auto\" chooses", needless},
    {"debug", "", "rank 0 logs to the terminal, all ranks to files", needless},
    {"debug_skip_save", "checkpoint.enable", "the opposite value", negate},
    {"do_clip", "training.max_norm", "0 disables clipping", needless},
    {"grad_norm_dtype", "", "norms are summed in fp64", needless},
    {"chunked_loss", "training.loss_chunk", "chosen from the vocabulary", needless},
    {"recompute_ratio", "activation_checkpoint.every_n", "with mode = \"every_n\"", read},
    {"param_dtype", "precision.compute", "", read},
    {"reduce_dtype", "precision.reduce", "", read},
    {"pack_max_length", "training.seq_len"},
});

constexpr auto kXtunerDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "1e-5"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.95"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.01"},
    {"training.max_norm", "1.0"},
    {"training.local_batch_size", "1"},
    {"training.seed", "42"},
    {"precision.compute", "bf16"},
    {"precision.reduce", "bf16"},
    {"activation_checkpoint.mode", "full"},
    {"lr_scheduler.decay_type", "constant"},
    {"lr_scheduler.warmup_ratio", "0.03"},
    {"data.packing", "best_fit"},
});

std::string without_torch(const std::string& name) {
  return name.starts_with("torch.") ? name.substr(6) : name;
}

void convert_xtuner_data(ForeignConversion& conversion) {
  const std::string_view key =
      conversion.has("dataset_cfg") ? "dataset_cfg" : "dataloader_cfg.dataset_config_list";
  const ConfigValue* value = conversion.find(key);
  if (value == nullptr) return;
  std::vector<std::string> sources;
  for (const ConfigValue& entry : value->list) {
    const ConfigValue* inner = entry.find("dataset");
    const ConfigValue& dataset = inner != nullptr ? *inner : entry;
    if (const ConfigValue* path = dataset.find("anno_path"); path != nullptr && !path->text.empty())
      sources.push_back(format("path = {}, format = \"messages\"", toml_string(path->text)));
  }
  conversion.set_sources(key, "data.sources", sources, /*are_joined=*/true);
}

void finish_xtuner(ForeignConversion& conversion) {
  convert_length(conversion, "total_step", conversion.has("total_epoch") ? "total_epoch" : "epoch_num", 0);
  convert_betas(conversion, "optim_cfg.betas");
  if (conversion.has("lr_cfg.warmup_ratio")) convert_warmup(conversion, "", "lr_cfg.warmup_ratio");
  convert_min_lr(conversion, "lr_cfg.lr_min");
  convert_kept(conversion, "checkpoint_maxkeep");
  convert_xtuner_data(conversion);
  // A row of each rank is a micro-batch; the batch counts rows.
  if (const auto rows = conversion.number("global_batch_size"))
    conversion.set("global_batch_size", "training.global_batch_size", number_text(*rows));
  for (const std::string_view section : {"", "fsdp_cfg."}) {
    const auto key = [&](std::string_view name) { return format("{}{}", section, name); };
    if (const std::string type = conversion.text(key("param_dtype")); !type.empty())
      conversion.set(key("param_dtype"), "precision.compute", without_torch(type));
    if (const std::string type = conversion.text(key("reduce_dtype")); !type.empty())
      conversion.set(key("reduce_dtype"), "precision.reduce", without_torch(type));
    if (const auto ratio = conversion.number(key("recompute_ratio"))) {
      if (*ratio == 1 || *ratio == 0) {
        conversion.set(key("recompute_ratio"), "activation_checkpoint.mode", *ratio == 1 ? "full" : "none");
      } else {
        conversion.lose(key("recompute_ratio"),
                        "use activation_checkpoint.every_n (with mode = \"every_n\")");
      }
    }
  }
  if (const std::string level = conversion.text("dataloader_cfg.pack_level"); !level.empty())
    conversion.set("dataloader_cfg.pack_level", "data.packing",
                   level == "soft" || level == "expand_soft" ? "best_fit" : level);
  if (const auto degree = conversion.number("sp_size")) {
    conversion.set("sp_size", "parallelism.context_parallel_degree", number_text(*degree));
    if (*degree > 1) conversion.set("", "parallelism.context_parallel_method", "ulysses");
  }
  if (conversion.find("hf_interval") != nullptr)
    conversion.set("hf_interval", "checkpoint.last_save_in_hf", "true", "the last step only");
}

}  // namespace

const ForeignTrainer& xtuner_trainer() {
  static constexpr ForeignTrainer trainer{.name = "xtuner",
                                          .title = "XTuner",
                                          .keys = kXtunerKeys,
                                          .inherited = {},
                                          .defaults = kXtunerDefaults,
                                          .finish = finish_xtuner};
  return trainer;
}

}  // namespace stepforge
