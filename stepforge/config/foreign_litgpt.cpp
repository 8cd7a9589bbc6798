// SPDX-License-Identifier: Apache-2.0
// litgpt: its files for `finetune` and `pretrain`.
#include <array>
#include <cmath>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_adapter.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr std::string_view kModules = "the names of these modules";

constexpr auto kLitgptKeys = std::to_array<ForeignKey>({
    {"checkpoint_dir", "model.from", kModelFolder, model},
    {"initial_checkpoint_dir", "model.from", kModelFolder, model},
    {"model_name", "preset", "such as preset = \"llama3-8b\"; `stepforge config presets` lists them", lost},
    {"model_config.name", "", "the folder names the run", needless},
    {"model_config.n_layer", "model.n_layers"},
    {"model_config.n_head", "model.n_heads"},
    {"model_config.n_query_groups", "model.n_kv_heads"},
    {"model_config.n_embd", "model.dim"},
    {"model_config.head_size", "model.head_dim"},
    {"model_config.intermediate_size", "model.ffn_dim"},
    {"model_config.block_size", "model.max_position"},
    {"model_config.padded_vocab_size", "model.vocab_size"},
    {"model_config.vocab_size", "", "padded_vocab_size has the size of the embedding", needless},
    {"model_config.norm_eps", "model.norm_eps"},
    {"model_config.rope_base", "model.rope_theta"},
    {"model_config.norm_class_name", "model.family", "llama has RMS norms", lost, "rmsnorm"},
    {"model_config.mlp_class_name", "model.family", "llama has a gated MLP", lost, "llamamlp"},
    {"model_config.rotary_percentage", "model.family", "llama rotates whole heads", lost, "1"},
    {"model_config.parallel_residual", "model.family", "llama has attention and MLP in turn", lost},
    {"model_config.scale_embeddings", "model.family", "gemma2 scales embeddings", lost},
    {"model_config.bias", "model.family", "llama has no biases", lost},
    {"model_config.*", "model.family", "the sizes in [model]", lost},
    {"tokenizer_dir", "tokenizer.path", "with tokenizer.type = \"hf\"", tokenizer},
    {"out_dir", "run_dir"},
    {"precision", "precision.compute", "\"fp32\" or \"bf16\"", read},
    {"quantize", "model.frozen_dtype", kFrozenBits, read},
    {"devices", "", "use `stepforge launch --nproc N`", read},
    {"num_nodes", "", "use `stepforge launch --nproc N`", read},
    {"resume", "checkpoint.load_step", "a run continues by itself; load_step chooses a checkpoint", lost,
     "true|auto"},
    {"lora_r", "adapter.rank", "", read},
    {"lora_alpha", "adapter.alpha", "", read},
    {"lora_dropout", "adapter.dropout", "", read},
    {"lora_query", "adapter.targets", kModules, read},
    {"lora_key", "adapter.targets", kModules, read},
    {"lora_value", "adapter.targets", kModules, read},
    {"lora_projection", "adapter.targets", kModules, read},
    {"lora_mlp", "adapter.targets", kModules, read},
    {"lora_head", "adapter.targets", kModules, read},
    {"data", "data.sources", kOneTablePerSource, lost},
    {"data.class_path", "data.sources", kOneTablePerSource, read},
    {"data.init_args.json_path", "data.sources", kOneTablePerSource, read},
    {"data.init_args.train_data_path", "data.sources", kOneTablePerSource, read},
    {"data.init_args.val_data_path", "data.validation", kOneTablePerSource, read},
    {"data.init_args.mask_prompt", "data.sources", "loss_on = \"assistant\" or \"all\" in each source", read},
    {"data.init_args.prompt_style", "data.chat_template", "", read},
    {"data.init_args.val_split_fraction", "data.validation_fraction", "", read},
    {"data.init_args.seed", "data.seed"},
    {"data.init_args.num_workers", "", "text is tokenized once and memory-mapped", needless},
    {"data.init_args.ignore_index", "", "prompts that are masked have no label", needless},
    {"data.init_args.download_dir", "", "data are not downloaded", needless},
    {"data.init_args.*", "data.sources", kOneTablePerSource, lost},
    {"train.save_interval", "checkpoint.interval"},
    {"train.log_interval", "metrics.log_freq"},
    {"train.global_batch_size", "training.global_batch_size", "over all ranks", read},
    {"train.micro_batch_size", "training.local_batch_size", "", read},
    {"train.lr_warmup_steps", "lr_scheduler.warmup_steps", "", read},
    {"train.lr_warmup_fraction", "lr_scheduler.warmup_ratio", "of the run", read},
    {"train.epochs", "training.epochs", "", read},
    {"train.max_tokens", "training.steps", "tokens divided by those of a step", read},
    {"train.max_steps", "training.steps", "", read},
    {"train.max_time", "", kNotAvailable, lost},
    {"train.max_seq_length", "training.seq_len", "", read},
    {"train.tie_embeddings", "model.tie_embeddings"},
    {"train.max_norm", "training.max_norm"},
    {"train.min_lr", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"eval.interval", "validation.freq"},
    {"eval.max_iters", "validation.steps"},
    {"eval.max_new_tokens", "sampling.max_tokens", "", needless},
    {"eval.initial_validation", "", kNotAvailable, lost},
    {"eval.final_validation", "", "validation.freq counts steps, and the last one is validated too",
     needless},
    {"eval.evaluate_example", "sampling.prompt", "", needless},
    {"logger_name", "", kCurvesElsewhere, lost, "csv"},
    {"log.*", "", "the folder names the run", needless},
    {"seed", "training.seed"},
    {"access_token", "", "models are not downloaded", needless},
    {"optimizer", "optimizer.name", "", optimizer},
    {"optimizer.class_path", "optimizer.name", "", optimizer},
    {"optimizer.init_args.lr", "optimizer.lr"},
    {"optimizer.init_args.weight_decay", "optimizer.weight_decay"},
    {"optimizer.init_args.betas", "optimizer.beta1", "and optimizer.beta2", read},
    {"optimizer.init_args.eps", "optimizer.eps"},
    {"optimizer.init_args.fused", "", kFusedKernels, needless},
});

// Defaults of torch.optim.AdamW, which decays all weights.
constexpr auto kLitgptDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "1e-3"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.999"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.01"},
    {"optimizer.decay_all", "true"},
    {"lr_scheduler.decay_type", "cosine"},
    {"metrics.log_freq", "1"},
    {"checkpoint.interval", "1000"},
});

void convert_litgpt_length(ForeignConversion& conversion, bool is_pretraining) {
  const auto steps = conversion.number("train.max_steps");
  const auto epochs = conversion.number("train.epochs");
  const auto tokens = conversion.number("train.max_tokens");
  if (steps) {
    conversion.set("train.max_steps", "training.steps", number_text(*steps));
    for (const std::string_view other : {"train.epochs", "train.max_tokens"})
      if (conversion.has(other))
        conversion.lose(other,
                        "training.steps sets the length; there the one that is reached first ends the run");
    return;
  }
  if (tokens) {
    const TrainingConfig& training = conversion.config().training;
    const auto per_step = static_cast<double>(training.global_batch_size * training.seq_len);
    conversion.set("train.max_tokens", "training.steps", number_text(std::ceil(*tokens / per_step)),
                   format("{} tokens in steps of {}", *tokens, per_step));
    if (epochs) conversion.lose("train.epochs", "training.steps sets the length");
    return;
  }
  if (epochs) return conversion.set("train.epochs", "training.epochs", number_text(*epochs));
  if (!is_pretraining) conversion.set_default("training.epochs", "5");
}

void convert_litgpt_data(ForeignConversion& conversion, bool is_pretraining) {
  const ConfigValue* masked = conversion.find("data.init_args.mask_prompt");
  std::string options = is_pretraining ? "" : ", format = \"alpaca\"";
  if (!is_pretraining && (masked == nullptr || is_off(*masked, ""))) options += ", loss_on = \"all\"";
  const std::string data = conversion.text("data.class_path");
  if (conversion.has("data.init_args.json_path")) {
    convert_paths(conversion, "data.init_args.json_path", "data.sources", options);
  } else if (conversion.has("data.init_args.train_data_path")) {
    convert_paths(conversion, "data.init_args.train_data_path", "data.sources");
    convert_paths(conversion, "data.init_args.val_data_path", "data.validation");
  } else if (!data.empty()) {
    conversion.lose("data.class_path",
                    format("it downloads its data: name the files in data.sources{}", options));
  }
  convert_template(conversion, "data.init_args.prompt_style");
  if (const auto share = conversion.number("data.init_args.val_split_fraction"))
    conversion.set("data.init_args.val_split_fraction", "data.validation_fraction", toml_float(*share));
  // Each sample has a row of its own, and loses what is too long; pre-training cuts all text into rows.
  conversion.set_default("data.packing", is_pretraining ? "concat" : "none");
}

void convert_litgpt_batch(ForeignConversion& conversion, bool is_pretraining) {
  const std::string seq = "train.max_seq_length";
  if (const auto length = conversion.number(seq)) {
    conversion.set(seq, "training.seq_len", number_text(*length));
  } else if (conversion.is_set("model.max_position")) {
    conversion.set_default("training.seq_len",
                           number_text(static_cast<double>(conversion.config().model.max_position)));
  }
  const double micro = conversion.number("train.micro_batch_size").value_or(is_pretraining ? 4 : 1);
  const double total = conversion.number("train.global_batch_size").value_or(is_pretraining ? 512 : 16);
  const auto n_devices = conversion.number("devices");
  const auto n_nodes = conversion.number("num_nodes");
  if (n_devices) conversion.set_ranks(*n_devices * n_nodes.value_or(1));
  for (const std::string_view key : {"devices", "num_nodes"})
    if (conversion.has(key)) conversion.need_nothing(key, "use `stepforge launch --nproc N`");
  conversion.set("train.micro_batch_size", "training.local_batch_size", number_text(micro));
  conversion.set("train.global_batch_size", "training.global_batch_size", number_text(total));
}

/// Parts of a model that may have adapters there, and what their default is.
struct LitgptPart {
  std::string_view key;
  bool is_usual;
  std::string_view modules;
};
constexpr auto kParts = std::to_array<LitgptPart>({
    {"lora_query", true, R"("q_proj")"},
    {"lora_key", false, R"("k_proj")"},
    {"lora_value", true, R"("v_proj")"},
    {"lora_projection", false, R"("o_proj")"},
    {"lora_mlp", false, R"("gate_proj", "up_proj", "down_proj")"},
    {"lora_head", false, R"("lm_head")"},
});

/// A file for LoRA has some of its keys.
void convert_litgpt_adapter(ForeignConversion& conversion) {
  constexpr ForeignAdapter adapter{.rank = "lora_r",
                                   .alpha = "lora_alpha",
                                   .dropout = "lora_dropout",
                                   .default_rank = 8,
                                   .default_alpha = 16,
                                   .default_dropout = 0.05};
  bool is_lora = conversion.has("lora_r") || conversion.has("lora_alpha") || conversion.has("lora_dropout");
  std::string modules;
  std::string_view last;
  for (const LitgptPart& part : kParts) {
    const bool is_set = conversion.has(part.key);
    is_lora = is_lora || is_set;
    if (is_set) last = part.key;
    if (is_set ? conversion.is_true(part.key) : part.is_usual)
      modules += format("{}{}", modules.empty() ? "" : ", ", part.modules);
  }
  if (is_lora) {
    convert_lora(conversion, "", adapter);
    conversion.set(last, "adapter.targets", format("[{}]", modules));
  }
  const std::string quantize = conversion.text("quantize");
  const int64_t bits = quantize.empty()                  ? 0
                       : quantize.starts_with("bnb.nf4") ? 4
                       : quantize == "bnb.int8"          ? 8
                                                         : 1;
  convert_quantization(conversion, "quantize", bits);
  if (quantize == "bnb.nf4-dq" && conversion.is_set("model.frozen_dtype"))
    conversion.set("quantize", "model.double_quantization", "true");
}

void finish_litgpt(ForeignConversion& conversion) {
  const bool is_pretraining = !conversion.has("checkpoint_dir");
  if (const std::string precision = conversion.text("precision"); !precision.empty()) {
    const bool is_bf16 = precision.starts_with("bf16");
    if (is_bf16 || precision.starts_with("32")) {
      conversion.set("precision", "precision.compute", is_bf16 ? "bf16" : "fp32",
                     precision == "bf16-true" ? "weights stay in fp32" : "");
    } else {
      conversion.lose("precision", "precision.compute is \"fp32\" or \"bf16\"");
    }
  }
  convert_litgpt_adapter(conversion);
  convert_litgpt_batch(conversion, is_pretraining);
  convert_litgpt_length(conversion, is_pretraining);
  convert_litgpt_data(conversion, is_pretraining);
  convert_betas(conversion, "optimizer.init_args.betas");
  if (conversion.has("train.lr_warmup_steps") || conversion.has("train.lr_warmup_fraction")) {
    convert_warmup(conversion, "train.lr_warmup_steps", "train.lr_warmup_fraction");
  } else {
    conversion.set_default("lr_scheduler.warmup_steps", is_pretraining ? "2000" : "100");
  }
  if (!is_pretraining) {
    if (conversion.has("train.min_lr"))
      conversion.need_nothing("train.min_lr", "its fine-tuning schedule ends at 0 and does not read it");
    if (!conversion.has("train.max_norm")) conversion.set_default("training.max_norm", "0.0");
    return;
  }
  conversion.set_default("lr_scheduler.decay_type", "cosine");
  convert_min_lr(conversion, "train.min_lr");
}

}  // namespace

const ForeignTrainer& litgpt_trainer() {
  static constexpr ForeignTrainer trainer{.name = "litgpt",
                                          .title = "litgpt",
                                          .keys = kLitgptKeys,
                                          .inherited = {},
                                          .defaults = kLitgptDefaults,
                                          .finish = finish_litgpt};
  return trainer;
}

}  // namespace stepforge
