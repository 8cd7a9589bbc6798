// SPDX-License-Identifier: Apache-2.0
// Configurations of other trainers, converted and trained: the steps, rows, tokens and rates are those of their rules.
#include <map>

#include "stepforge/metrics/jsonl.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

/// A text, 8 questions with answers in two data sets, and a model of bytes to start from.
class ConvertedRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    write_text(*folder_ / "tale.txt", some_text(100));
    std::string records[2];
    for (int i = 0; i < 8; ++i)
      records[i < 6 ? 0 : 1] +=
          format("{{\"instruction\": \"Add {} and 1.\", \"output\": \"It is {}.\"}}\n", i, i + 1);
    write_text(*folder_ / "six.jsonl", records[0]);
    write_text(*folder_ / "two.jsonl", records[1]);
    write_text(*folder_ / "dataset_info.json",
               R"({"six": {"file_name": "six.jsonl"}, "two": {"file_name": "two.jsonl"}})");
    write_text(*folder_ / "chat.jinja",
               "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}");
    std::string chats;
    for (int i = 0; i < 8; ++i)
      chats += format(
          R"({{"messages": [{{"role": "user", "content": "Q{}"}}, {{"role": "assistant", "content": "A"}}]}})"
          "\n",
          i);
    write_text(*folder_ / "chats.jsonl", chats);
    const ProgramResult base =
        run_program(Strings{"train"} + small_run(*folder_ / "base") + Strings{"training.steps=1"});
    ASSERT_EQ(base.exit_code, 0) << base.err;
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string at(const std::string& name) { return (*folder_ / name).string(); }

  struct Step {
    double lr;
    int64_t tokens;  ///< so far
  };

  /// Converts the file and trains with it and the further settings, in fp32, which all machines compute fast.
  static std::vector<Step> steps_of(const std::string& name, const std::string& text,
                                    const Strings& settings = {}) {
    const fs::path folder = *folder_ / ("of-" + name);
    fs::create_directories(folder);
    write_text(folder / name, text);
    const std::string toml = output_of({"config", "convert", (folder / name).string()});
    write_text(folder / "run.toml", toml);
    const fs::path run = folder / "run";
    const ProgramResult training =
        run_program(Strings{"train", (folder / "run.toml").string(), "run_dir=" + run.string(),
                            "data.cache_dir=" + at("cache"), "training.threads=1", "precision.compute=fp32",
                            "metrics.log_freq=1"} +
                    settings);
    EXPECT_EQ(training.exit_code, 0) << training.err << toml;
    std::vector<Step> steps;
    if (training.exit_code != 0) return steps;
    for (const MetricsRecord& record : read_jsonl(run / "metrics.jsonl"))
      if (record.find("lr"))
        steps.push_back({*record.find("lr"), static_cast<int64_t>(record.find("n_tokens_seen").value_or(0))});
    return steps;
  }

  /// Two steps of 4 rows of 32 tokens, at a rate of 1e-3 that `last` is left of in the second.
  static void expect_two_steps(const std::vector<Step>& steps, double last) {
    ASSERT_EQ(steps.size(), 2U);
    EXPECT_DOUBLE_EQ(steps[0].lr, 1e-3);
    EXPECT_NEAR(steps[1].lr, last, 1e-12);
    EXPECT_EQ(steps[0].tokens, 4 * 32);
    EXPECT_EQ(steps[1].tokens, 2 * 4 * 32);
  }

  /// The same without the tokens, as rows of conversations have padding.
  static void expect_two_rates(const std::vector<Step>& steps, double last) {
    ASSERT_EQ(steps.size(), 2U) << "8 samples in steps of 4";
    EXPECT_DOUBLE_EQ(steps[0].lr, 1e-3);
    EXPECT_NEAR(steps[1].lr, last, 1e-12);
  }

  static Strings small_model() {
    return {"model.dim=32", "model.n_layers=2", "model.n_heads=2", "model.n_kv_heads=1", "model.ffn_dim=48"};
  }
  static std::string tale_source() { return format("data.sources=[{{path=\"{}\"}}]", at("tale.txt")); }
  static std::string chat_template() { return "data.chat_template=" + at("chat.jinja"); }

  inline static TempFolder* folder_ = nullptr;
};

TEST_F(ConvertedRun, OfTorchtitan) {
  expect_two_steps(steps_of("titan.toml",
                            format(R"(
[optimizer]
lr = 1e-3
[lr_scheduler]
warmup_steps = 0
[training]
seq_len = 32
local_batch_size = 2
global_batch_size = 4
steps = 2
dataset_path = "{}"
[checkpoint]
enable = false
interval = 500
[validation]
enable = false
freq = 10
)",
                                   at("tale.txt")),
                            small_model()),
                   5e-4);
}

TEST_F(ConvertedRun, OfTrainingArguments) {
  expect_two_steps(
      steps_of("args.json",
               R"({"learning_rate": 1e-3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
                   "max_steps": 2, "num_train_epochs": 3, "warmup_steps": 0, "save_strategy": "no"})",
               small_model() + Strings{tale_source(), "training.seq_len=32"}),
      5e-4);
}

TEST_F(ConvertedRun, OfTrl) {
  expect_two_rates(steps_of("sft.yaml",
                            format(R"(
model_name_or_path: {}
dataset_name: {}
max_length: 64
per_device_train_batch_size: 4
learning_rate: 1.0e-3
num_train_epochs: 1
)",
                                   at("base"), at("chats.jsonl")),
                            {chat_template()}),
                   5e-4);
}

TEST_F(ConvertedRun, OfLlamaFactory) {
  expect_two_rates(steps_of("factory.yaml",
                            format(R"(
model_name_or_path: {}
stage: sft
finetuning_type: full
dataset: six, two
dataset_dir: {}
cutoff_len: 64
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 1.0e-3
num_train_epochs: 1.0
lr_scheduler_type: cosine
)",
                                   at("base"), folder_->path().string()),
                            {chat_template()}),
                   5e-4);
}

TEST_F(ConvertedRun, OfAxolotl) {
  expect_two_rates(steps_of("axolotl.yaml",
                            format(R"(
base_model: {}
datasets:
  - {{path: {}, type: alpaca}}
  - {{path: {}, type: alpaca}}
sequence_len: 64
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
warmup_steps: 0
learning_rate: 1e-3
lr_scheduler: constant
val_set_size: 0.0
saves_per_epoch: 1
)",
                                   at("base"), at("six.jsonl"), at("two.jsonl")),
                            {chat_template()}),
                   1e-3);
}

TEST_F(ConvertedRun, OfMindSpeed) {
  expect_two_steps(steps_of("mind.yaml", format(R"(
model: {{model_name_or_path: {}}}
data: {{dataset: {{file_name: {}}}, cutoff_len: 32, data_manager_type: mg}}
parallel: {{fsdp_size: 1, tp_size: 1, recompute: True}}
training:
  stage: pt
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 2
  lr: 1e-3
  min_lr: 1e-4
  lr_scheduler_type: cosine
  warmup_ratio: 0.0
  num_train_epochs: 3.0
  max_steps: 2
)",
                                                at("base"), at("tale.txt"))),
                   5.5e-4);
}

TEST_F(ConvertedRun, OfVeOmni) {
  expect_two_steps(steps_of("veomni.yaml", format(R"(
model: {{model_path: {}}}
data: {{train_path: {}, data_type: plaintext, max_seq_len: 32}}
train:
  global_batch_size: 4
  micro_batch_size: 2
  num_train_epochs: 2
  max_steps: 1
  optimizer: {{lr: 1.0e-3, lr_decay_style: constant}}
)",
                                                  at("base"), at("tale.txt"))),
                   1e-3);
}

TEST_F(ConvertedRun, OfLitgpt) {
  expect_two_steps(steps_of("litgpt.yaml", format(R"(
model_config: {{n_layer: 2, n_head: 2, n_query_groups: 1, n_embd: 32, intermediate_size: 48, block_size: 32}}
data: {{class_path: litgpt.data.TextFiles, init_args: {{train_data_path: {}}}}}
train: {{global_batch_size: 4, micro_batch_size: 2, max_tokens: 256, lr_warmup_steps: 0, min_lr: 1e-4}}
optimizer: {{class_path: torch.optim.AdamW, init_args: {{lr: 1e-3}}}}
)",
                                                  at("tale.txt"))),
                   5.5e-4);
}

TEST_F(ConvertedRun, OfNanoGpt) {
  expect_two_steps(
      steps_of("nano.py", R"(dataset = 'shakespeare_char'
gradient_accumulation_steps = 1 * 2
batch_size = 2
block_size = 32
n_layer = 2
n_head = 2
n_embd = 32
learning_rate = 1e-3
min_lr = 1e-4
max_iters = 2
lr_decay_iters = 2
warmup_iters = 0
eval_interval = 10
)",
               {tale_source(), "data.validation=[]", "validation.freq=0", "validation.steps=-1"}),
      5.5e-4);
}

TEST_F(ConvertedRun, OfMegatron) {
  expect_two_steps(steps_of("megatron.sh", R"(LR=1e-3
ARGS=(
  --num-layers 2
  --hidden-size 32
  --ffn-hidden-size 48
  --num-attention-heads 2
  --seq-length 32
  --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
  --micro-batch-size 2
  --global-batch-size 4
  --train-samples 8
  --lr ${LR} # the peak
  --min-lr 1e-4
  --lr-decay-style linear
  --mock-data
)
torchrun pretrain_gpt.py ${ARGS[@]}
)"),
                   5.5e-4);
}

TEST_F(ConvertedRun, IsRefusedWithCodeThreeIfItAsksForAnotherAdapterThanLora) {
  const fs::path file = *folder_ / "oft.yaml";
  write_text(file, "model_name_or_path: m\nstage: sft\nfinetuning_type: oft\noft_rank: 8\ndataset: six\n");
  const ProgramResult refused = run_program({"config", "convert", file.string()});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_EQ(refused.out, "");
  EXPECT_CONTAINS(refused.err, "finetuning_type = \"oft\"", "--force");
  const ProgramResult forced = run_program({"config", "convert", "--force", file.string()});
  EXPECT_EQ(forced.exit_code, 0);
  EXPECT_CONTAINS(forced.out, "from = \"m\"", "this trains another model", "finetuning_type = \"oft\"");
}

}  // namespace
}  // namespace stepforge::testing
