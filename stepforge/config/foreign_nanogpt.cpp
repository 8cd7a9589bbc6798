// SPDX-License-Identifier: Apache-2.0
// nanoGPT: files of assignments.
#include <array>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using enum ForeignRule;

constexpr auto kNanoGptKeys = std::to_array<ForeignKey>({
    {"out_dir", "run_dir"},
    {"eval_interval", "validation.freq"},
    {"eval_iters", "validation.steps"},
    {"log_interval", "metrics.log_freq"},
    {"eval_only", "", "not a configuration key: use `stepforge eval`", lost},
    {"always_save_checkpoint", "checkpoint.interval", "it saves when it evaluates", read},
    {"init_from", "model.from", kModelFolder, read},
    {"wandb_log", "", kCurvesElsewhere, lost},
    {"wandb_project", "", "read only with wandb_log", needless},
    {"wandb_run_name", "", "read only with wandb_log", needless},
    {"dataset", "data.sources", "one table { path = \"train.bin\", format = \"tokens_u16\" }", read},
    {"gradient_accumulation_steps", "training.global_batch_size", "rows x accumulation steps of all ranks",
     read},
    {"batch_size", "training.local_batch_size", "", read},
    {"block_size", "training.seq_len"},
    {"n_layer", "model.n_layers"},
    {"n_head", "model.n_heads", "and model.n_kv_heads", read},
    {"n_embd", "model.dim", "and model.ffn_dim", read},
    {"dropout", "model.dropout"},
    {"bias", "model.family", "llama has no biases", lost},
    {"learning_rate", "optimizer.lr"},
    {"max_iters", "training.steps"},
    {"weight_decay", "optimizer.weight_decay"},
    {"beta1", "optimizer.beta1"},
    {"beta2", "optimizer.beta2"},
    {"grad_clip", "training.max_norm"},
    {"decay_lr", "lr_scheduler.decay_type", "\"cosine\" or \"constant\"", read},
    {"warmup_iters", "lr_scheduler.warmup_steps", "", read},
    {"lr_decay_iters", "lr_scheduler.total_steps", "", read},
    {"min_lr", "lr_scheduler.min_lr_factor", "as a fraction of the peak rate", read},
    {"backend", "", "the program has its own communication", needless},
    {"device", "training.device", "", read},
    {"dtype", "precision.compute", "\"fp32\" or \"bf16\"", read},
    {"compile", "", kFusedKernels, needless},
});

constexpr auto kNanoGptDefaults = std::to_array<ForeignDefault>({
    {"optimizer.lr", "6e-4"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.95"},
    {"optimizer.eps", "1e-8"},
    {"optimizer.weight_decay", "0.1"},
    {"training.max_norm", "1.0"},
    {"training.seq_len", "1024"},
    {"training.steps", "600000"},
    {"model.n_layers", "12"},
    {"validation.freq", "2000"},
    {"validation.steps", "200"},
    {"metrics.log_freq", "1"},
    {"precision.compute", "bf16"},
});

void convert_nanogpt_model(ForeignConversion& conversion) {
  const std::string from = conversion.text("init_from");
  if (from.starts_with("gpt2")) conversion.refuse("init_from", "no family computes as GPT-2 does");
  if (from == "scratch" || from == "resume")
    conversion.need_nothing("init_from", "a run continues by itself");
  const int64_t heads = static_cast<int64_t>(conversion.number("n_head").value_or(12));
  const int64_t dim = static_cast<int64_t>(conversion.number("n_embd").value_or(768));
  conversion.set("n_head", "model.n_heads", format("{}", heads));
  conversion.set("n_head", "model.n_kv_heads", format("{}", heads));
  conversion.set("n_embd", "model.dim", format("{}", dim));
  // Two matrices of 4 dim there, three of 8/3 dim here, in multiples of 32.
  conversion.set("n_embd", "model.ffn_dim", format("{}", (dim * 8 / 3 + 31) / 32 * 32));
  conversion.lose("model",
                  "GPT-2's layer norms, GELU and learned positions are not available; this is a llama of the "
                  "same sizes and about as many parameters");
}

void convert_nanogpt_batch(ForeignConversion& conversion) {
  // Its accumulation steps are the total over all ranks.
  const double rows = conversion.number("batch_size").value_or(12);
  const double micro_batches = conversion.number("gradient_accumulation_steps").value_or(40);
  conversion.set("batch_size", "training.local_batch_size", number_text(rows));
  conversion.set("gradient_accumulation_steps", "training.global_batch_size",
                 number_text(rows * micro_batches),
                 format("{} rows x {} micro-batches of all ranks", rows, micro_batches));
}

void convert_nanogpt_data(ForeignConversion& conversion) {
  std::string name = conversion.text("dataset");
  if (name.empty()) name = "openwebtext";
  const auto source = [&](std::string_view file) {
    return std::vector{
        format("path = {}, format = \"tokens_u16\"", toml_string(format("data/{}/{}", name, file)))};
  };
  conversion.set_sources("dataset", "data.sources", source("train.bin"), /*are_joined=*/true);
  conversion.set_sources("dataset", "data.validation", source("val.bin"), /*are_joined=*/true);
  if (name.ends_with("_char"))
    return conversion.lose("model.vocab_size",
                           "the vocabulary is in its meta.pkl; set the number of its characters");
  conversion.set_default("model.vocab_size", "50304");
}

void finish_nanogpt(ForeignConversion& conversion) {
  convert_nanogpt_model(conversion);
  convert_nanogpt_batch(conversion);
  convert_nanogpt_data(conversion);
  if (const std::string type = conversion.text("dtype"); !type.empty())
    conversion.set("dtype", "precision.compute", type == "float16" ? "bf16" : type);
  if (conversion.text("device") == "cpu") {
    conversion.set("device", "training.device", "cpu");
  } else if (conversion.has("device")) {
    conversion.need_nothing("device", "training.device = \"auto\" takes a GPU if there is one");
  }
  const double evaluates = conversion.number("eval_interval").value_or(2000);
  conversion.set("always_save_checkpoint", "checkpoint.interval", number_text(evaluates),
                 "it saves when it evaluates");
  const ConfigValue* decays = conversion.find("decay_lr");
  if (decays != nullptr && is_off(*decays, "")) {
    conversion.set("decay_lr", "lr_scheduler.decay_type", "constant");
    conversion.set("", "lr_scheduler.warmup_steps", "0", "its constant schedule has no warm-up");
    for (const std::string_view key : {"warmup_iters", "lr_decay_iters", "min_lr"})
      if (conversion.has(key)) conversion.need_nothing(key, "read only with decay_lr");
    return;
  }
  conversion.set("decay_lr", "lr_scheduler.decay_type", "cosine");
  const double warmup = conversion.number("warmup_iters").value_or(2000);
  const double steps = conversion.number("lr_decay_iters").value_or(600000);
  conversion.set("warmup_iters", "lr_scheduler.warmup_steps", number_text(warmup));
  const double run = conversion.number("max_iters").value_or(600000);
  if (steps != run) conversion.set("lr_decay_iters", "lr_scheduler.total_steps", number_text(steps));
  if (!conversion.is_set("optimizer.lr")) conversion.set_default("optimizer.lr", "6e-4");
  if (conversion.has("min_lr")) return convert_min_lr(conversion, "min_lr");
  conversion.set_default("lr_scheduler.min_lr_factor", toml_float(6e-5 / conversion.config().optimizer.lr));
}

}  // namespace

const ForeignTrainer& nanogpt_trainer() {
  static constexpr ForeignTrainer trainer{.name = "nanogpt",
                                          .title = "nanoGPT",
                                          .keys = kNanoGptKeys,
                                          .inherited = {},
                                          .defaults = kNanoGptDefaults,
                                          .finish = finish_nanogpt};
  return trainer;
}

}  // namespace stepforge
