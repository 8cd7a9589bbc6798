// SPDX-License-Identifier: Apache-2.0
// Translates configurations and keys of other trainers.
#include "stepforge/config/convert.h"

#include <gtest/gtest.h>

#include "stepforge/config/foreign_keys.h"
#include "stepforge/config/schema.h"
#include "tests/config/config_testing.h"

namespace stepforge::testing {
namespace {

Config converted(const std::string& text, const std::string& name, const Strings& lost) {
  const ConvertedConfig result = convert_config(text, name);
  EXPECT_EQ(result.lost, lost);
  return parsed(result.toml).config;
}

TEST(ConvertConfig, TranslatesATorchtitanToml) {
  const Config config =
      converted(R"(
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets"
[optimizer]
name = "AdamW"
lr = 3e-4
implementation = "fused"
[lr_scheduler]
warmup_steps = 20
[training]
local_batch_size = 1
seq_len = 4096
steps = 1000
dataset_path = "c4.jsonl"
mixed_precision_param = "bfloat16"
enable_cpu_offload = true
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
expert_tensor_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[checkpoint]
enable = false
async_mode = "disabled"
last_save_model_only = true
[compile]
enable = true
[validation]
enable = false
freq = 10
)",
                "llama3.toml", {"checkpoint.last_save_model_only = true: not available yet"});
  EXPECT_EQ(config.run_dir, "./outputs");
  EXPECT_EQ(config.preset, "llama3-8b");
  EXPECT_EQ(config.tokenizer.path, "./assets");
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.training.seq_len, 4096);
  EXPECT_EQ(config.data.sources, (std::vector<DataSourceConfig>{{.path = "c4.jsonl"}}));
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_TRUE(config.parallelism.fsdp_cpu_offload);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::every_n);
  EXPECT_EQ(config.activation_checkpoint.every_n, 2);
  EXPECT_FALSE(config.checkpoint.async);
  EXPECT_EQ(config.validation.freq, 0);
}

TEST(ConvertConfig, TranslatesHuggingFaceTrainingArguments) {
  const Config config = converted(
      R"({"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8,
          "learning_rate": 2e-5, "adam_beta2": 0.98, "num_train_epochs": 3.0, "max_steps": 500,
          "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, "bf16": true, "fp16": false,
          "gradient_checkpointing": true, "save_strategy": "no", "eval_steps": null, "push_to_hub": true})",
      "args.json",
      {"gradient_accumulation_steps = 8: training.global_batch_size is for one rank; multiply it by the "
       "number of ranks",
       "push_to_hub = true: not available yet"});
  EXPECT_EQ(config.run_dir, "out");
  EXPECT_EQ(config.training.global_batch_size, 32);
  EXPECT_EQ(config.optimizer.lr, 2e-5);
  EXPECT_EQ(config.optimizer.beta2, 0.98);
  EXPECT_EQ(config.training.steps, 500);
  EXPECT_EQ(config.training.epochs, 0);
  EXPECT_EQ(config.lr_scheduler.decay_type, "cosine");
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 50);
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::full);
  EXPECT_FALSE(config.checkpoint.enable);
}

TEST(ConvertConfig, TranslatesALlamaFactoryYaml) {
  const Config config =
      converted(R"(### model
model_name_or_path: /models/llama
stage: sft
finetuning_type: full
dataset: alpaca, identity
cutoff_len: 2048
mask_history: true
learning_rate: 1.0e-5
num_train_epochs: 2.0
warmup_ratio: 0.1
bf16: true
)",
                "sft.yaml", {"warmup_ratio = 0.1: set lr_scheduler.warmup_steps to a number of steps"});
  EXPECT_EQ(config.checkpoint.initial_load_path, "/models/llama");
  EXPECT_EQ(config.tokenizer.type, TokenizerType::hf);
  EXPECT_EQ(config.training.epochs, 2);
  EXPECT_EQ(config.training.seq_len, 2048);
  ASSERT_EQ(config.data.sources.size(), 2U);
  EXPECT_EQ(config.data.sources[1],
            (DataSourceConfig{
                .path = "data/dataset_info.json", .loss_on = LossOnMessages::last, .dataset = "identity"}));
  EXPECT_EQ(config.data.packing, DataPacking::none);
  EXPECT_EQ(config.data.too_long, TooLongRule::proportional);
}

TEST(ConvertConfig, TranslatesThePackingOfLlamaFactory) {
  const auto packing = [](const std::string& yaml) { return converted(yaml, "a.yaml", {}).data.packing; };
  EXPECT_EQ(packing("stage: sft\npacking: true\n"), DataPacking::best_fit);
  EXPECT_EQ(packing("stage: sft\nneat_packing: true\n"), DataPacking::best_fit);
  EXPECT_EQ(packing("stage: sft\npacking: false\n"), DataPacking::none);
  EXPECT_EQ(packing("stage: pt\npacking: true\n"), DataPacking::concat);
  EXPECT_EQ(packing("stage: pt\n"), DataPacking::concat);
}

TEST(ConvertConfig, TrainOnPromptLearnsEverything) {
  const Config config =
      converted("dataset_dir: my\ndataset: [a]\neval_dataset: b\ntrain_on_prompt: true\n", "a.yaml", {});
  const DataSourceConfig expected{
      .path = "my/dataset_info.json", .loss_on = LossOnMessages::all, .dataset = "a"};
  EXPECT_EQ(config.data.sources, (std::vector{expected}));
  ASSERT_EQ(config.data.validation.size(), 1U);
  EXPECT_EQ(config.data.validation[0].dataset, "b");
}

TEST(ConvertConfig, ListsRefusedValues) {
  EXPECT_EQ(convert_config("{\"adam_beta1\": 2.0}", "a.json").lost,
            Strings{"adam_beta1 = 2.0: optimizer.beta1 = 2.0: expected a number (at least 0 and below 1); "
                    "the default is 0.9"});
}

TEST(ConvertConfig, RefusesAYamlBombAndMalformedFiles) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char name = 'b'; name < 'k'; ++name) {
    const char before = static_cast<char>(name - 1);
    bomb += std::string(1, name) + ": &" + name + " [";
    for (int i = 0; i < 10; ++i) bomb += std::string(i > 0 ? ", *" : "*") + before;
    bomb += "]\n";
  }
  EXPECT_THROW(convert_config(bomb, "bomb.yaml"), FormatError);
  EXPECT_THROW(convert_config("a: [1\n", "a.yaml"), FormatError);
  EXPECT_THROW(convert_config("[1]", "a.json"), FormatError);
  EXPECT_THROW(convert_config("a = = 1\n", "a.toml"), FormatError);
}

TEST(ForeignKeys, GetAHintWithOurKeyOrNotAvailableYet) {
  EXPECT_EQ(error_of("[training]\nmixed_precision_param = \"bfloat16\"\n"),
            "run.toml:2:1: training.mixed_precision_param: unknown key; use precision.compute");
  EXPECT_EQ(error_of("[checkpoint]\nlast_save_model_only = true\n"),
            "run.toml:2:1: checkpoint.last_save_model_only: unknown key; not available yet");
  EXPECT_EQ(error_of("[parallelism]\ncontext_parallel_rotate_method = \"alltoall\"\n"),
            "run.toml:2:1: parallelism.context_parallel_rotate_method: unknown key; use "
            "parallelism.context_parallel_method (\"allgather\", \"ring\", \"ulysses\" or \"hybrid\")");
  EXPECT_EQ(error_of("", {"gradient_accumulation_steps=4"}),
            "command line: gradient_accumulation_steps: unknown section or key; use "
            "training.global_batch_size (local_batch_size x ranks x accumulation steps)");
  EXPECT_EQ(error_of("", {"--micro-batch-size=4"}),
            "command line: micro-batch-size: unknown section or key; use training.local_batch_size");
}

TEST(ForeignKeys, SuggestionsAreFromTheSameSection) {
  EXPECT_FALSE(contains(error_of("[model]\nname = \"llama3\"\n"), "optimizer.name"));
  EXPECT_FALSE(contains(error_of("[training]\ncompile = true\n"), "precision.compute"));
  EXPECT_FALSE(contains(error_of("[checkpoint]\nkeep = 3\n"), "data.seed"));
  EXPECT_EQ(
      error_of("[debug]\nworkers = 3\n"),
      "run.toml:2:1: debug.workers: unknown key; known keys: print_config, prove_layout, check_copies_freq, "
      "plant_nan_step, plant_nan_block");
}

TEST(ForeignKeys, EveryEntryIsUniqueAndNamesAnExistingField) {
  for (const ForeignKey& key : all_foreign_keys()) {
    Config scratch;
    EXPECT_TRUE(key.ours.empty() || find_field(config_schema(), &scratch, key.ours).field != nullptr)
        << key.name;
    EXPECT_EQ(find_foreign_key(key.name), &key) << key.name << " is listed twice";
    EXPECT_FALSE(key.ours.empty() && key.note.empty()) << key.name;
  }
}

TEST(LoadConfig, AcceptsSynonymsOfChoicesAndBooleans) {
  const Config config = parsed(
                            "[optimizer]\nname = \"AdamW\"\n[precision]\ncompute = \"bfloat16\"\nreduce = "
                            "\"float32\"\n[checkpoint]\n"
                            "enable = \"no\"\n",
                            {"data.shuffle=yes", "checkpoint.export_dtype=float16"})
                            .config;
  EXPECT_EQ(config.optimizer.name, "adamw");
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.precision.reduce, DType::f32);
  EXPECT_EQ(config.checkpoint.export_dtype, DType::f16);
  EXPECT_FALSE(config.checkpoint.enable);
  EXPECT_TRUE(config.data.shuffle);
}

TEST(LoadConfig, RecognizesYamlAndSuggestsConvert) {
  EXPECT_TRUE(contains(error_of("# a run\nmodel:\n  dim: 3\n"),
                       "this looks like YAML, but configurations are TOML; `stepforge config convert "
                       "run.toml` translates it"));
  EXPECT_CONTAINS(error_of("[training]\nsteps: 3\n"), "not valid TOML");
}

}  // namespace
}  // namespace stepforge::testing
