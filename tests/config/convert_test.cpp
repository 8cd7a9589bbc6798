// SPDX-License-Identifier: Apache-2.0
// Translates configurations of other trainers; the values are those of their shipped examples.
#include "stepforge/config/convert.h"

#include <gtest/gtest.h>

#include "tests/config/converting.h"

namespace stepforge::testing {
namespace {

/// Our source with these fields, and no others.
DataSourceConfig group_of(std::vector<DataSourceConfig> sources) {
  return {.combine = SourceCombine::concat, .sources = std::move(sources)};
}

TEST(ConvertConfig, TranslatesATorchtitanToml) {
  const std::string text = R"(
[job]
dump_folder = "./outputs"
description = "Llama 3 8B"
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
dataset = "c4"
dataset_path = "c4.jsonl"
enable_cpu_offload = true
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
enable_async_tensor_parallel = false
[activation_checkpoint]
mode = "selective"
selective_ac_option = "3"
[checkpoint]
enable = true
async_mode = "async"
exclude_from_loading = ["lr_scheduler"]
last_save_model_only = true
[compile]
enable = true
[validation]
enable = false
freq = 10
)";
  EXPECT_EQ(lost(text, "llama3.toml"), Strings{"checkpoint.last_save_model_only = true: not available yet: "
                                               "checkpoints hold all that a resume needs"});
  const Config config = converted(text, "llama3.toml", "torchtitan");
  EXPECT_EQ(config.run_dir, "./outputs");
  EXPECT_EQ(config.preset, "llama3-8b");
  EXPECT_EQ(config.tokenizer.path, "./assets");
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_TRUE(config.optimizer.decay_all) << "torchtitan decays norms too";
  EXPECT_EQ(config.training.seq_len, 4096);
  EXPECT_EQ(config.training.steps, 1000);
  EXPECT_EQ(config.training.local_batch_size, 1);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 20);
  EXPECT_EQ(config.data.sources, (std::vector<DataSourceConfig>{{.path = "c4.jsonl"}}));
  EXPECT_EQ(config.precision.compute, DType::bf16) << "its default";
  EXPECT_TRUE(config.parallelism.fsdp_cpu_offload);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::every_n);
  EXPECT_EQ(config.activation_checkpoint.every_n, 3);
  EXPECT_TRUE(config.checkpoint.async);
  EXPECT_FALSE(config.checkpoint.load.schedule);
  EXPECT_EQ(config.validation.freq, 0);
}

TEST(ConvertConfig, WritesTheDefaultsOfTorchtitanWhereOursDiffer) {
  const Config config =
      converted("[training]\nseq_len = 128\n[model]\nhf_assets_path = \"t\"\n", "a.toml", "torchtitan");
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.training.steps, 10000);
  EXPECT_FALSE(config.checkpoint.enable);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::every_n);
  EXPECT_CONTAINS(convert_config("[training]\nseq_len = 128\n", "a.toml").toml,
                  "compute = \"bf16\"  # torchtitan's default\n");
}

TEST(ConvertConfig, TakesTheMemoryBudgetOfTorchtitan) {
  const auto section = [](const std::string& settings) {
    return converted("[training]\nsteps = 2\n[activation_checkpoint]\n" + settings, "a.toml", "torchtitan")
        .activation_checkpoint;
  };
  EXPECT_EQ(section("mode = \"memory_budget\"\n").mode, RecomputeMode::budget);
  EXPECT_EQ(section("mode = \"memory_budget\"\n").memory_budget, 0.5) << "its default";
  EXPECT_EQ(section("mode = \"memory_budget\"\nmemory_budget = 0.2\n").memory_budget, 0.2);
  EXPECT_EQ(section("mode = \"full\"\nmemory_budget = 0.2\n").mode, RecomputeMode::full);
}

TEST(ConvertConfig, TranslatesHuggingFaceTrainingArguments) {
  const std::string text =
      R"({"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8,
          "learning_rate": 2e-5, "adam_beta2": 0.98, "num_train_epochs": 3.0, "max_steps": 500,
          "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, "bf16": true, "fp16": false, "seed": 7,
          "gradient_checkpointing": true, "save_strategy": "no", "eval_steps": null, "push_to_hub": true})";
  EXPECT_EQ(lost(text, "args.json"), Strings{"push_to_hub = true: not available yet: nothing is uploaded"});
  const Config config = converted(text, "args.json", "Hugging Face TrainingArguments");
  EXPECT_EQ(config.run_dir, "out");
  EXPECT_EQ(config.training.local_batch_size, 4);
  EXPECT_EQ(config.training.global_batch_size, 32);
  EXPECT_EQ(config.optimizer.lr, 2e-5);
  EXPECT_EQ(config.optimizer.beta2, 0.98);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0) << "its default";
  EXPECT_EQ(config.training.steps, 500) << "steps win over epochs";
  EXPECT_EQ(config.training.epochs, 0);
  EXPECT_EQ(config.lr_scheduler.decay_type, "cosine");
  EXPECT_EQ(config.lr_scheduler.warmup_ratio, 0.1);
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::full);
  EXPECT_FALSE(config.checkpoint.enable);
  EXPECT_EQ(config.training.seed, 7);
  EXPECT_EQ(config.data.seed, 7);
}

TEST(ConvertConfig, BatchesPerRankAreMultipliedByTheRanksOfTheJob) {
  const std::string text =
      "learning_rate: 1.0e-5\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n";
  const auto batch = [&](int64_t ranks) {
    return converted(text, "a.yaml", "Hugging Face TrainingArguments", {.ranks = ranks})
        .training.global_batch_size;
  };
  EXPECT_EQ(batch(0), 8);
  EXPECT_EQ(batch(4), 32);
  EXPECT_CONTAINS(convert_config(text, "a.yaml").toml,
                  "for 1 data-parallel rank; convert with --ranks N for N");
  EXPECT_EQ(
      converted(
          "base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\ntensor_parallel_size: 2\n",
          "a.yaml", "Axolotl", {.ranks = 8})
          .training.global_batch_size,
      32)
      << "ranks of one tensor-parallel group share their rows";
}

TEST(ConvertConfig, TranslatesARecipeOfTheAlignmentHandbook) {
  const std::string text = R"(
model_name_or_path: mistral-7b
torch_dtype: bfloat16
attn_implementation: flash_attention_2
dataset_mixture:
  datasets:
    - id: chats
      split: train_sft
      columns: [messages]
      weight: 1.0
    - id: more
      weight: 0.5
  seed: 0
  test_split_size: 1000
bf16: true
do_eval: true
eval_strategy: epoch
gradient_accumulation_steps: 1
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
learning_rate: 2.0e-05
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {min_lr_rate: 0.1}
max_seq_length: 2048
max_steps: -1
num_train_epochs: 1
output_dir: data/zephyr
per_device_train_batch_size: 16
report_to: [wandb]
save_strategy: steps
save_steps: 100
save_total_limit: 1
warmup_ratio: 0.1
)";
  const Config config = converted(text, "sft.yaml", "TRL");
  EXPECT_EQ(config.model.from, "mistral-7b");
  EXPECT_EQ(config.training.epochs, 1);
  EXPECT_EQ(config.training.local_batch_size, 16);
  EXPECT_EQ(config.training.global_batch_size, -1) << "one micro-batch of each rank";
  EXPECT_EQ(config.training.seq_len, 2048);
  EXPECT_EQ(config.optimizer.lr, 2e-5);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(config.lr_scheduler.warmup_ratio, 0.1);
  EXPECT_EQ(config.lr_scheduler.min_lr_factor, 0.1);
  EXPECT_EQ(config.checkpoint.keep_latest_k, 2);
  EXPECT_EQ(config.checkpoint.interval, 100);
  const DataSourceConfig first{
      .path = "chats/**/train_sft*", .format = DataFormat::messages, .loss_on = LossOnMessages::all};
  const DataSourceConfig second{
      .path = "more", .format = DataFormat::messages, .loss_on = LossOnMessages::all};
  EXPECT_EQ(config.data.sources, std::vector{group_of({first, second})});
  EXPECT_EQ(config.data.packing, Packing::none);
  const std::string all = ::testing::PrintToString(lost(text, "sft.yaml"));
  for (const char* part : {"test_split_size = 1000", "weight is the share", "eval_strategy", "report_to"})
    EXPECT_CONTAINS(all, part);
}

constexpr const char* kLlamaFactory = R"(### model
model_name_or_path: Qwen/Qwen3-4B
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/ds_z3.json
### dataset
dataset: identity,alpaca_en_demo
template: qwen
cutoff_len: 2048
max_samples: 1000
preprocessing_num_workers: 16
dataloader_num_workers: 4
### output
output_dir: saves/qwen3-4b/full/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
)";

TEST(ConvertConfig, TranslatesALlamaFactoryYaml) {
  EXPECT_EQ(lost(kLlamaFactory, "sft.yaml"),
            Strings{"max_samples = 1000: use data.sources (not available yet as an option; num_samples in "
                    "dataset_info.json)"});
  const Config config = converted(kLlamaFactory, "sft.yaml", "LLaMA-Factory");
  EXPECT_EQ(config.model.from, "Qwen/Qwen3-4B");
  EXPECT_EQ(config.checkpoint.initial_load_path, "");
  EXPECT_EQ(config.training.epochs, 3);
  EXPECT_EQ(config.training.seq_len, 2048);
  EXPECT_EQ(config.training.local_batch_size, 1);
  EXPECT_EQ(config.training.global_batch_size, 2);
  EXPECT_EQ(config.optimizer.lr, 1e-5);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(config.lr_scheduler.warmup_ratio, 0.1);
  EXPECT_EQ(config.lr_scheduler.decay_type, "cosine");
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::full) << "its default";
  EXPECT_EQ(config.data.chat_template, "qwen");
  EXPECT_EQ(config.data.packing, Packing::none);
  EXPECT_EQ(config.data.too_long, TooLong::proportional);
  const DataSourceConfig identity{.path = "data/dataset_info.json", .dataset = "identity"};
  const DataSourceConfig alpaca{.path = "data/dataset_info.json", .dataset = "alpaca_en_demo"};
  EXPECT_EQ(config.data.sources, std::vector{group_of({identity, alpaca})}) << "they are joined";
}

TEST(ConvertConfig, WritesTheDefaultsOfAPeerWithAComment) {
  const std::string toml = convert_config(kLlamaFactory, "sft.yaml").toml;
  EXPECT_CONTAINS(toml, "beta2 = 0.999  # LLaMA-Factory's default\n");
  EXPECT_CONTAINS(toml, "weight_decay = 0.0  # LLaMA-Factory's default\n");
  EXPECT_FALSE(contains(toml, "beta1")) << "ours is the same";
  const Config config =
      converted("model_name_or_path: m\nfinetuning_type: full\nstage: sft\n", "a.yaml", "LLaMA-Factory");
  EXPECT_EQ(config.optimizer.lr, 5e-5);
  EXPECT_EQ(config.training.epochs, 3);
  EXPECT_EQ(config.training.local_batch_size, 8);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 0);
  EXPECT_CONTAINS(convert_config("model_name_or_path: m\nfinetuning_type: full\nstage: sft\n", "a.yaml").toml,
                  "warmup_steps = 0  #")
      << "model.from would have 20";
}

TEST(ConvertConfig, SourcesPrintOnlyWhatIsSet) {
  EXPECT_CONTAINS(convert_config(kLlamaFactory, "sft.yaml").toml,
                  "sources = [{combine = \"concat\", sources = [{path = \"data/dataset_info.json\", dataset "
                  "= \"identity\"}, {path = \"data/dataset_info.json\", dataset = \"alpaca_en_demo\"}]}]\n");
}

TEST(ConvertConfig, InterleavedDataSetsKeepTheirWeights) {
  const Config config = converted(
      "model_name_or_path: m\nfinetuning_type: full\ndataset: a,b\nmix_strategy: interleave_over\n"
      "interleave_probs: 0.7,0.3\n",
      "a.yaml", "LLaMA-Factory");
  ASSERT_EQ(config.data.sources.size(), 2U);
  EXPECT_EQ(config.data.sources[0].weight, 0.7);
  EXPECT_EQ(config.data.sources[1].weight, 0.3);
}

TEST(ConvertConfig, TranslatesThePackingOfLlamaFactory) {
  const auto packing = [](const std::string& yaml) {
    return converted("finetuning_type: full\n" + yaml, "a.yaml", "LLaMA-Factory").data.packing;
  };
  EXPECT_EQ(packing("stage: sft\npacking: true\n"), Packing::best_fit);
  EXPECT_EQ(packing("stage: sft\nneat_packing: true\n"), Packing::best_fit);
  EXPECT_EQ(packing("stage: sft\npacking: false\n"), Packing::none);
  EXPECT_EQ(packing("stage: pt\npacking: true\n"), Packing::concat);
  EXPECT_EQ(packing("stage: pt\n"), Packing::concat);
}

TEST(ConvertConfig, TrainOnPromptLearnsEverything) {
  const Config config = converted(
      "finetuning_type: full\ndataset_dir: my\ndataset: [a]\neval_dataset: b\ntrain_on_prompt: true\n",
      "a.yaml", "LLaMA-Factory");
  const DataSourceConfig expected{
      .path = "my/dataset_info.json", .loss_on = LossOnMessages::all, .dataset = "a"};
  EXPECT_EQ(config.data.sources, (std::vector{expected}));
  ASSERT_EQ(config.data.validation.size(), 1U);
  EXPECT_EQ(config.data.validation[0].dataset, "b");
}

TEST(ConvertConfig, TranslatesAnAxolotlYaml) {
  const std::string text = R"(
base_model: NousResearch/Meta-Llama-3.1-8B
datasets:
  - path: alpaca.jsonl
    type: alpaca
  - path: chats.jsonl
    type: chat_template
    field_messages: conversations
dataset_prepared_path: last_run_prepared
val_set_size: 0.05
output_dir: ./outputs/out
sequence_len: 8192
sample_packing: true
wandb_project:
gradient_accumulation_steps: 8
micro_batch_size: 1
num_epochs: 1
optimizer: paged_adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
logging_steps: 1
attn_implementation: flash_attention_2
warmup_ratio: 0.1
evals_per_epoch: 2
saves_per_epoch: 1
weight_decay: 0.0
special_tokens: {pad_token: <|end_of_text|>}
other_unknown: 0.9
)";
  EXPECT_EQ(lost(text, "fft.yaml"),
            (Strings{"evals_per_epoch = 2: use validation.freq (saves, evaluations and logs count steps)",
                     "saves_per_epoch = 1: use checkpoint.interval (saves, evaluations and logs count steps)",
                     "other_unknown = 0.9: unknown key of Axolotl"}));
  const Config config = converted(text, "fft.yaml", "Axolotl");
  EXPECT_EQ(config.model.from, "NousResearch/Meta-Llama-3.1-8B");
  EXPECT_EQ(config.optimizer.name, "adamw_8bit");
  EXPECT_EQ(config.optimizer.lr, 2e-5);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.training.epochs, 1);
  EXPECT_EQ(config.training.seq_len, 8192);
  EXPECT_EQ(config.training.global_batch_size, 8);
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.lr_scheduler.warmup_ratio, 0.1);
  EXPECT_EQ(config.data.validation_fraction, 0.05);
  EXPECT_EQ(config.data.packing, Packing::best_fit);
  EXPECT_EQ(config.data.too_long, TooLong::drop);
  EXPECT_EQ(config.data.sources,
            std::vector{group_of({{.path = "alpaca.jsonl", .format = DataFormat::alpaca},
                                  {.path = "chats.jsonl", .format = DataFormat::sharegpt}})});
}

TEST(ConvertConfig, AxolotlWithoutAWordTrainsOneEpochOfShortRows) {
  const Config config = converted("base_model: m\nlearning_rate: 1e-5\n", "a.yaml", "Axolotl");
  EXPECT_EQ(config.training.epochs, 1);
  EXPECT_EQ(config.training.local_batch_size, 1);
  EXPECT_EQ(config.training.seq_len, 512);
  EXPECT_EQ(config.lr_scheduler.decay_type, "cosine");
  EXPECT_EQ(config.lr_scheduler.warmup_ratio, 0.03);
  EXPECT_EQ(config.data.packing, Packing::none);
}

TEST(ConvertConfig, TranslatesAMindSpeedYaml) {
  const std::string text = R"(
model:
  model_name_or_path: /models/Qwen3-8B
  trust_remote_code: False
  train_from_scratch: False
data:
  dataset: alpaca_full
  template: qwen3
  cutoff_len: 4096
parallel:
  fsdp_size: 8
  fsdp_modules:
    - model.layers.{*}
    - lm_head
  tp_size: 1
  ep_size: 1
  recompute: True
  recompute_modules:
    - model.layers.{*}
  reduce_dtype: bf16
training:
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 1
  seed: 42
  output_dir: ./output
  optimizer: adamw
  lr: 1e-05
  weight_decay: 0.01
  adam_beta1: 0.9
  adam_beta2: 0.95
  max_grad_norm: 1.0
  lr_scheduler_type: cosine
  warmup_ratio: 0.0
  min_lr: 1e-06
  num_train_epochs: 3.0
  max_steps: 2000
  save_steps: 500
  logging_steps: 1
)";
  const Config config = converted(text, "tune.yaml", "MindSpeed-LLM");
  EXPECT_EQ(config.model.from, "/models/Qwen3-8B");
  EXPECT_EQ(config.training.steps, 2000);
  EXPECT_EQ(config.training.epochs, 0);
  EXPECT_EQ(config.training.seq_len, 4096);
  EXPECT_EQ(config.training.local_batch_size, 1);
  EXPECT_EQ(config.optimizer.lr, 1e-5);
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 0);
  EXPECT_DOUBLE_EQ(config.lr_scheduler.min_lr_factor, 0.1);
  EXPECT_EQ(config.parallelism.data_parallel_shard_degree, 8);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::full);
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.precision.reduce, DType::bf16);
  EXPECT_EQ(config.data.sources.at(0).dataset, "alpaca_full");
}

TEST(ConvertConfig, TranslatesAVeOmniYaml) {
  const std::string text = R"(
model:
  model_path: Meta-Llama-3-8B
data:
  train_path: fineweb
  train_size: 8192000
  dataloader: {type: native, drop_last: true}
  datasets_type: iterable
  data_type: plaintext
  max_seq_len: 1024
  text_keys: content
train:
  accelerator:
    ulysses_size: 1
    ep_size: 1
    fsdp_config:
      fsdp_mode: fsdp2
      mixed_precision: {enable: true}
  gradient_checkpointing: {enable: true}
  global_batch_size: 16
  micro_batch_size: 2
  num_train_epochs: 3
  max_steps: 2000
  optimizer:
    type: adamw
    lr: 3.0e-4
    lr_warmup_ratio: 0.007
    lr_decay_style: cosine
    lr_min: 3.0e-5
    weight_decay: 0.01
    max_grad_norm: 1.0
  checkpoint: {output_dir: llama3-8b, manager: dcp, save_steps: 100, save_hf_weights: true}
  wandb: {enable: false, project: Meta}
)";
  const Config config = converted(text, "llama3.yaml", "VeOmni");
  EXPECT_EQ(config.model.from, "Meta-Llama-3-8B");
  EXPECT_EQ(config.training.steps, 3 * 500) << "its max_steps counts one epoch, which train_size ends at 500";
  EXPECT_EQ(config.training.global_batch_size, 16);
  EXPECT_EQ(config.training.local_batch_size, 2);
  EXPECT_EQ(config.training.seq_len, 1024);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.lr_scheduler.warmup_ratio, 0.007);
  EXPECT_DOUBLE_EQ(config.lr_scheduler.min_lr_factor, 0.1);
  EXPECT_EQ(config.data.sources, (std::vector<DataSourceConfig>{{.path = "fineweb", .field = "content"}}));
  EXPECT_EQ(config.data.packing, Packing::concat);
  EXPECT_TRUE(config.checkpoint.last_save_in_hf);
}

TEST(ConvertConfig, TranslatesALitgptYaml) {
  const std::string text = R"(
checkpoint_dir: checkpoints/Llama-3.2-1B
out_dir: out/full
precision: bf16-true
devices: 1
num_nodes: 1
data:
  class_path: litgpt.data.JSON
  init_args: {json_path: my.json, mask_prompt: false, prompt_style: alpaca, val_split_fraction: 0.05, seed: 42}
train:
  save_interval: 200
  log_interval: 1
  global_batch_size: 64
  micro_batch_size: 4
  lr_warmup_steps: 25
  epochs: 1
  max_tokens:
  max_steps:
  max_seq_length: 512
  max_norm:
  min_lr: 6.0e-05
eval: {interval: 25, max_new_tokens: 100, max_iters: 100, initial_validation: false, final_validation: true}
logger_name: csv
seed: 1337
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 0.0002, weight_decay: 0.1, betas: [0.9, 0.95]}
)";
  const Config config = converted(text, "full.yaml", "litgpt");
  EXPECT_EQ(config.model.from, "checkpoints/Llama-3.2-1B");
  EXPECT_EQ(config.training.epochs, 1);
  EXPECT_EQ(config.training.global_batch_size, 64);
  EXPECT_EQ(config.training.local_batch_size, 4);
  EXPECT_EQ(config.training.seq_len, 512);
  EXPECT_EQ(config.training.max_norm, 0.0) << "it does not clip";
  EXPECT_EQ(config.optimizer.lr, 2e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 25);
  EXPECT_EQ(config.lr_scheduler.min_lr_factor, 0.0) << "its fine-tuning ends at 0";
  EXPECT_EQ(config.lr_scheduler.decay_type, "cosine");
  EXPECT_EQ(config.data.sources,
            (std::vector<DataSourceConfig>{
                {.path = "my.json", .format = DataFormat::alpaca, .loss_on = LossOnMessages::all}}));
  EXPECT_EQ(config.data.validation_fraction, 0.05);
  EXPECT_EQ(config.validation.freq, 25);
}

TEST(ConvertConfig, LitgptPretrainingCountsTokens) {
  const Config config = converted(R"(
model_config: {n_layer: 2, n_head: 4, n_query_groups: 2, n_embd: 64, intermediate_size: 128, block_size: 256}
train: {global_batch_size: 8, micro_batch_size: 4, max_tokens: 204800, min_lr: 6e-5, lr_warmup_steps: 10}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 6e-4}}
)",
                                  "a.yaml", "litgpt");
  EXPECT_EQ(config.training.seq_len, 256);
  EXPECT_EQ(config.training.steps, 100);
  EXPECT_EQ(config.model.n_kv_heads, 2);
  EXPECT_DOUBLE_EQ(config.lr_scheduler.min_lr_factor, 0.1);
}

TEST(ConvertConfig, TranslatesTheValuesOfXtuner) {
  const Config config = converted(R"({"load_from": "/models/qwen", "tokenizer_path": "/models/qwen",
    "model_cfg": {"vocab_size": 100}, "global_batch_size": 16, "work_dir": "work", "total_epoch": 2, "sp_size": 2,
    "dataloader_cfg": {"pack_max_length": 4096, "num_workers": 4,
      "dataset_config_list": [{"dataset": {"anno_path": "a.jsonl"}, "tokenize_fn": {}}]},
    "optim_cfg": {"lr": 6e-5, "weight_decay": 0.0}, "lr_cfg": {"lr_type": "cosine", "warmup_ratio": 0.1, "lr_min": 6e-6},
    "fsdp_cfg": {"param_dtype": "torch.bfloat16", "recompute_ratio": 1.0, "ep_size": 1}})",
                                  "trainer.json", "XTuner");
  EXPECT_EQ(config.model.from, "/models/qwen");
  EXPECT_EQ(config.training.epochs, 2);
  EXPECT_EQ(config.training.global_batch_size, 16);
  EXPECT_EQ(config.training.local_batch_size, 1);
  EXPECT_EQ(config.training.seq_len, 4096);
  EXPECT_EQ(config.optimizer.lr, 6e-5);
  EXPECT_DOUBLE_EQ(config.lr_scheduler.min_lr_factor, 0.1);
  EXPECT_EQ(config.parallelism.context_parallel_degree, 2);
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.data.sources.at(0).path, "a.jsonl");
}

TEST(ConvertConfig, RefusesFilesOfAdaptersPreferencesAndQuantizedWeights) {
  const std::string factory = "model_name_or_path: m\ndataset: d\n";
  EXPECT_EQ(
      refused(factory + "stage: ppo\nfinetuning_type: full\npref_beta: 0.1\n", "a.yaml"),
      Strings{"stage = \"ppo\": only pre-training, supervised fine-tuning and losses of pairs or judged "
              "answers (preference.loss) are available"});
  EXPECT_EQ(refused(factory + "stage: sft\nfinetuning_type: full\nfp8: true\n", "a.yaml").size(), 1U);
  EXPECT_EQ(refused("base_model: m\nadapter:\nload_in_4bit: false\nlora_r:\n", "a.yaml"), Strings{});
  EXPECT_EQ(refused("base_model: m\nrl: grpo\n", "a.yaml").size(), 1U);
  EXPECT_EQ(refused("model_name_or_path: m\nlearning_rate: 1e-6\nbeta: 0.01\nnum_generations: 8\n", "a.yaml")
                .size(),
            1U);
  EXPECT_EQ(
      refused("[model]\nname = \"llama3\"\nflavor = \"8B\"\nconverters = [\"float8\"]\n", "a.toml").size(),
      1U);
  EXPECT_EQ(refused("checkpoint_dir: c\nquantize: bnb.nf4\ntrain: {epochs: 1}\n", "a.yaml").size(), 1U)
      << "without an adapter nothing is frozen";
  EXPECT_EQ(refused("MODEL_ARGS: {--num-layers: 2, --fp8-format: hybrid}\n", "a.yaml").size(), 1U);
  EXPECT_EQ(refused("model: {model_path: m, lora_config: {rank: 8}}\ntrain: {lr: 1e-4}\n", "a.yaml").size(),
            1U);
}

TEST(ConvertConfig, ANumberIsNeverOffByItsValue) {
  for (const char* line :
       {"lora_unknown: 1", "pref_unknown: 0.1", "other_unknown: 0.9", "another: 0", "one: 1"}) {
    const ConvertedConfig result = convert_config(std::string("base_model: m\n") + line + "\n", "a.yaml");
    ASSERT_EQ(result.lost.size(), 1U) << line;
    EXPECT_CONTAINS(result.lost[0], "unknown key of Axolotl");
  }
}

TEST(ConvertConfig, EverySettingIsTranslatedListedOrOff) {
  const ConvertedConfig result = convert_config(kLlamaFactory, "a.yaml");
  EXPECT_EQ(result.n_settings, 28U);
  EXPECT_EQ(result.n_translated + result.n_lost + result.n_needless + result.off.size(), result.n_settings);
  EXPECT_EQ(result.off, (Strings{"save_only_model", "report_to", "resume_from_checkpoint"}));
  EXPECT_EQ(result.needless.size(), result.n_needless);
}

TEST(ConvertConfig, FromNamesTheTrainerOrAnUnknownFileIsRefused) {
  EXPECT_EQ(convert_config("lr: 1\n", "a.yaml", {.from = "megatron"}).trainer, "Megatron-LM");
  EXPECT_CONTAINS(message_of<UsageError>([&] { convert_config("a: 1\n", "a.yaml"); }),
                  "--from names one of torchtitan");
  EXPECT_CONTAINS(message_of<UsageError>([&] { convert_config("lr: 1\n", "a.yaml", {.from = "x"}); }),
                  "\"x\" is not a trainer");
}

TEST(ConvertConfig, ListsRefusedValues) {
  EXPECT_EQ(lost("{\"adam_beta1\": 2.0}", "a.json"),
            Strings{"adam_beta1 = 2.0: optimizer.beta1 = 2.0: expected a number (at least 0 and below 1); "
                    "the default is 0.9"});
  EXPECT_EQ(lost("[optimizer]\nlr = -1.0\n", "a.toml"),
            Strings{"optimizer.lr = -1.0: expected a number (0 to 1000); the default is 8e-4"})
      << "said once";
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

}  // namespace
}  // namespace stepforge::testing
