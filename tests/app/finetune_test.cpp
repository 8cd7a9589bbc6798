// SPDX-License-Identifier: Apache-2.0
// `stepforge finetune`: what it chooses, and that it trains with it.
#include <algorithm>
#include <cmath>
#include <set>

#include "stepforge/app/finetune_choices.h"
#include "stepforge/app/finetune_data.h"
#include "stepforge/base/error.h"
#include "stepforge/config/diff.h"
#include "stepforge/data/data_plan.h"
#include "stepforge/dataset/tokenize.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/plan/step_plan.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;

std::string question(int i) {
  return format("Question {}{}: what follows?", i, std::string(static_cast<size_t>(i % 40 * 10), '.'));
}

/// Conversations of different lengths, of which every twentieth is far longer.
std::string chats(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += format(
        R"({{"messages": [{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": "It is {}."}}]}})"
        "\n",
        question(i), i % 20 == 19 ? std::string(900, 'x') : std::to_string(i + 1));
  return lines;
}

/// A Hugging Face folder of a small model of bytes, and data.
class Finetune : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    write_text(*folder_ / "chat.jsonl", chats(200));
    write_text(*folder_ / "other.jsonl", chats(3));
    const ProgramResult base = run_program(
        Strings{"train"} + small_run(*folder_ / "base") +
        Strings{"training.steps=1", "checkpoint.last_save_in_hf=true", "model.max_position=2048"});
    ASSERT_EQ(base.exit_code, 0) << base.err;
    fs::rename(*folder_ / "base" / "hf" / "step-1", *folder_ / "tiny");
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string at(const std::string& name) { return (*folder_ / name).string(); }

  /// What it chooses with `memory` bytes.
  static FinetunePlan plan(const Strings& fields = {}, FinetuneOptions options = {},
                           int64_t memory = kGibibyte) {
    options.model = at("tiny");
    if (options.data.empty()) options.data = at("chat.jsonl");
    options.overrides =
        Strings{"run_dir=" + at("new"), "data.cache_dir=" + at("cache"), "training.threads=1"} + fields;
    Logger log(LogLevel::error, false);
    return plan_finetuning(options, {memory, "are given", true}, std::make_shared<Registry>(), log);
  }
  static FinetunePlan plan_of(const std::string& data, const Strings& fields = {}) {
    FinetuneOptions options;
    options.data = at(data);
    return plan(fields, options);
  }

  static int64_t bytes_of(const Config& config) {
    return account(write_train_step(plan_job(config))).peak_of_one_memory();
  }

  static TempFolder* folder_;
};
TempFolder* Finetune::folder_ = nullptr;

/// The end-to-end path: a model folder and 200 conversations.
TEST_F(Finetune, TrainsAndSaysWhatToDoNext) {
  const Strings command{"finetune",          at("tiny"),          at("chat.jsonl"),    "run_dir=" + at("run"),
                        "training.epochs=1", "optimizer.lr=1e-3", "training.threads=1"};
  const ProgramResult result = run_program(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string toml = read_file(*folder_ / "run" / "finetune.toml");
  EXPECT_CONTAINS(result.out, toml, "Why:", "Next:", "the step needs");
  EXPECT_CONTAINS(result.err, "sample at step 0: ", "lowest validation loss");
  const fs::path best = best_checkpoint(at("run"));
  EXPECT_CONTAINS(result.out, "stepforge chat " + best.string(),
                  format("stepforge export {} {}-model --merge", best.string(), at("run")),
                  format("stepforge train {} training.epochs=2", at("run/finetune.toml")));
  EXPECT_EQ(run_program({"chat", best.string(), "--max-tokens", "3"}, "Hello\n").exit_code, 0);
  EXPECT_EQ(run_program({"export", best.string(), at("run-model"), "--merge"}).exit_code, 0);
  const ProgramResult more = run_program({"train", at("run/finetune.toml"), "training.epochs=2"});
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_CONTAINS(more.err, "resumed from");
  EXPECT_CONTAINS(refusal_of(command), "is a run already", at("run/finetune.toml"), "run_dir=FOLDER");
}

TEST_F(Finetune, WithPartsOfTheWeightsHasOneModelInEveryForm) {
  const ProgramResult trained =
      run_program(Strings{"train"} + small_run(*folder_ / "pissa") +
                  Strings{"model.max_position=2048", "checkpoint.initial_load_path=" + at("tiny"),
                          "adapter.type=lora", "adapter.init=pissa", "adapter.rank=4", "optimizer.lr=0.01",
                          "lr_scheduler.warmup_steps=0", "training.steps=4"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(run_program({"export", at("pissa"), at("pissa-adapter")}).exit_code, 0);
  EXPECT_EQ(run_program({"export", at("pissa"), at("pissa-model"), "--merge"}).exit_code, 0);
  EXPECT_CONTAINS(refusal_of({"export", at("pissa"), at("pissa-rounded"), "--dtype", "bf16"}), "--merge");
  write_text(*folder_ / "pissa.txt", chats(20));
  const auto loss_of = [&](const Strings& model) {
    return number_after(
        output_of(Strings{"eval"} + model + Strings{"--data", at("pissa.txt"), "--seq-len", "32"}), "loss");
  };
  const double of_run = loss_of({at("pissa")});
  EXPECT_GT(std::abs(of_run - loss_of({at("tiny")})), 1e-3) << "it has learned something";
  EXPECT_NEAR(loss_of({at("pissa-model")}), of_run, 1e-5);
  EXPECT_NEAR(loss_of({at("tiny"), "--adapter", at("pissa-adapter")}), of_run, 1e-5);
  // Norms of DoRA are those of whole weights.
  const ProgramResult dora = run_program(
      Strings{"train"} + small_run(*folder_ / "dora") +
      Strings{"model.max_position=2048", "checkpoint.initial_load_path=" + at("tiny"), "adapter.type=dora",
              "adapter.rank=4", "optimizer.lr=0.01", "lr_scheduler.warmup_steps=0", "training.steps=4"});
  ASSERT_EQ(dora.exit_code, 0) << dora.err;
  EXPECT_EQ(run_program({"export", at("dora"), at("dora-adapter")}).exit_code, 0);
  const Strings both{at("pissa"), "--adapter", at("dora-adapter")};
  EXPECT_EQ(run_program({"export", at("pissa"), at("both-model"), "--merge", "--adapter", at("dora-adapter")})
                .exit_code,
            0);
  EXPECT_NEAR(loss_of({at("both-model")}), loss_of(both), 1e-5);
}

TEST_F(Finetune, TheWrittenFileIsTheConfiguration) {
  const FinetunePlan chosen = plan({"adapter.dropout=0.1", "data.sources.0.loss_on=last"});
  const LoadedConfig loaded =
      parse_config(finetune_toml(chosen.loaded), "finetune.toml", {}, ConfigUse::train, settings_from_model);
  for (const FieldDifference& difference : diff(loaded.config, chosen.loaded.config))
    ADD_FAILURE() << difference.name << ": " << difference.before << ", " << difference.after;
  EXPECT_EQ(finetune_toml(loaded), finetune_toml(chosen.loaded));
}

TEST_F(Finetune, FieldsOfTheUserWinOverChoices) {
  const Strings fields{"training.epochs=7", "training.seq_len=600",        "optimizer.lr=0.125",
                       "adapter.rank=3",    "training.local_batch_size=3", "data.validation_fraction=0.4",
                       "validation.freq=5", "sampling.at_ends=false",      "activation_checkpoint.mode=full",
                       "adapter.alpha=5",   "data.chat_template=chatml",   "lr_scheduler.decay_type=linear"};
  const Config config = plan({fields.begin(), fields.end() - 2}).loaded.config;
  EXPECT_EQ(config.training.epochs, 7);
  EXPECT_EQ(config.training.seq_len, 600);
  EXPECT_EQ(config.training.local_batch_size, 3);
  EXPECT_EQ(config.training.global_batch_size % 3, 0);
  EXPECT_EQ(config.optimizer.lr, 0.125);
  EXPECT_EQ(config.adapter.rank, 3);
  EXPECT_EQ(config.adapter.alpha, 5);
  EXPECT_EQ(config.data.validation_fraction, 0.4);
  EXPECT_EQ(config.validation.freq, 5);
  EXPECT_FALSE(config.sampling.at_ends);
  EXPECT_EQ(config.activation_checkpoint.mode, RecomputeMode::full);
  EXPECT_CONTAINS(message_of<UsageError>([&] { plan({"model.from=other"}); }), "model.from", "MODEL");
}

TEST_F(Finetune, FieldsOfTheUserMayNeedWhatIsChosenLater) {
  for (const char* field : {"training.early_stopping.patience=3", "checkpoint.keep_best=true",
                            "model.frozen_dtype=bf16", "data.group_by_length=true", "adapter.dropout=0.5"})
    EXPECT_NO_THROW(plan({field})) << field;
  FinetuneOptions full;
  full.full = true;
  EXPECT_NO_THROW(plan({"training.local_batch_size=3", "data.balance=true"}, full));
}

TEST_F(Finetune, AnAdapterThatGoesOnSaysItsKindAndRank) {
  fs::create_directories(at("adapter"));
  write_text(
      fs::path(at("adapter")) / "adapter_config.json",
      R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj"], "use_dora": true})");
  const AdapterConfig adapter = plan({"adapter.from=" + at("adapter")}).loaded.config.adapter;
  EXPECT_EQ(adapter.type, AdapterType::dora);
  EXPECT_EQ(adapter.rank, 3);
}

TEST_F(Finetune, WithFullAllWeightsAreTrained) {
  FinetuneOptions options;
  options.full = true;
  const Config config = plan({}, options).loaded.config;
  EXPECT_FALSE(config.adapter.enabled());
  EXPECT_EQ(config.optimizer.lr, 1e-5);
  EXPECT_TRUE(plan().loaded.config.adapter.enabled());
  EXPECT_EQ(plan().loaded.config.optimizer.lr, 2e-4);
}

TEST_F(Finetune, RowsAreAsLongAsNineteenOfTwentyConversations) {
  const FinetunePlan chosen = plan();
  const Config& config = chosen.loaded.config;
  EXPECT_EQ(config.training.seq_len % 64, 0);
  const DataPlan data = data_plan(config, 0);
  const std::unique_ptr<Tokenizer> tokenizer = known_tokenizer(config);
  const DataStudy study =
      study_data(at("chat.jsonl"), record_options(data, data.sources[0]), *tokenizer, 1000);
  EXPECT_EQ(study.documents, 200);
  EXPECT_GE(config.training.seq_len, study.length_of(0.95));
  EXPECT_LT(config.training.seq_len, study.length_of(0.95) + 64);
  EXPECT_LT(config.training.seq_len, study.lengths.back()) << "the longest are cut";
}

TEST_F(Finetune, TheSampleAsksAQuestionThatIsHeldOut) {
  const Config config = plan().loaded.config;
  const ValidationSplit split{config.data.validation_fraction, static_cast<uint64_t>(config.data.seed)};
  const std::string all = chats(200);
  int found = 0;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = all.find('\n', begin);
    const std::string line = all.substr(begin, end - begin);
    begin = end + 1;
    if (!contains(line, {"\"" + config.sampling.prompt + "\""})) continue;
    ++found;
    EXPECT_TRUE(split.holds_out(hash128(line)));
  }
  EXPECT_EQ(found, 1);
  FinetuneOptions listed;
  listed.validation = at("other.jsonl");
  const Config other = plan({}, listed).loaded.config;
  EXPECT_EQ(other.sampling.prompt, question(0));
  EXPECT_EQ(other.data.validation_fraction, 0);
  EXPECT_EQ(other.data.validation.size(), 1U);
}

TEST_F(Finetune, StepsDownUntilTheStepProgramFits) {
  const FinetunePlan roomy = plan();
  const int64_t all = bytes_of(roomy.loaded.config);
  Config before = roomy.loaded.config;
  std::set<std::string> stages;
  for (int64_t memory = all * 2;; memory = memory * 4 / 5) {
    FinetunePlan chosen;
    try {
      chosen = plan({}, {}, memory);
    } catch (const UsageError& refusal) {
      EXPECT_CONTAINS(refusal.what(), "the step needs at least", human_bytes(memory), "tried: micro-batches");
      break;
    }
    const Config& config = chosen.loaded.config;
    EXPECT_LE(bytes_of(config), memory * 9 / 10);
    EXPECT_EQ(config.training.global_batch_size % config.training.local_batch_size, 0);
    const bool shorter = config.training.seq_len < roomy.loaded.config.training.seq_len;
    const bool recomputes = config.activation_checkpoint.mode != RecomputeMode::none;
    if (config.training.local_batch_size < roomy.loaded.config.training.local_batch_size)
      stages.insert("rows");
    if (recomputes) stages.insert("recomputation");
    if (shorter) stages.insert("length");
    EXPECT_EQ(shorter, std::ranges::any_of(chosen.warnings, [](const std::string& warning) {
                return warning.starts_with("rows of");
              }));
    EXPECT_LE(config.training.seq_len, before.training.seq_len);
    before = config;
  }
  EXPECT_EQ(stages.size(), 3U) << join({stages.begin(), stages.end()}, ", ");
}

TEST_F(Finetune, TextsAreReadInParagraphs) {
  write_text(*folder_ / "tale.txt", [] {
    std::string text;
    for (int i = 0; i < 60; ++i) text += some_text(5) + "\n";
    return text;
  }());
  const Config config = plan_of("tale.txt").loaded.config;
  EXPECT_EQ(config.data.document, DocumentUnit::paragraph);
  EXPECT_EQ(config.training.seq_len % 64, 0);
  EXPECT_LT(config.training.seq_len, 1024) << "a short text makes short rows";
  EXPECT_GT(config.data.validation_fraction, 0);
  EXPECT_FALSE(config.sampling.at_ends) << "there is no question";
}

TEST_F(Finetune, PairsOfAnswersAreComparedByDpo) {
  std::string lines;
  for (int i = 0; i < 100; ++i)
    lines += format(
        R"({{"prompt": [{{"role": "user", "content": "{}"}}], "chosen": "Yes.", "rejected": "No {}."}})"
        "\n",
        question(i), i);
  write_text(*folder_ / "pairs.jsonl", lines);
  const Config config = plan_of("pairs.jsonl").loaded.config;
  EXPECT_EQ(config.preference.loss, PreferenceLoss::dpo);
  EXPECT_EQ(config.data.sources.at(0).format, DataFormat::preference);
  EXPECT_EQ(config.optimizer.lr, 5e-6);
  EXPECT_EQ(config.training.epochs, 1);
  EXPECT_GE(config.training.seq_len, 2 * 430) << "the longest prompts, twice";
  EXPECT_TRUE(config.sampling.at_ends);
  EXPECT_CONTAINS(config.sampling.prompt, "what follows?");
  EXPECT_EQ(plan_of("pairs.jsonl", {"preference.loss=simpo"}).loaded.config.preference.loss,
            PreferenceLoss::simpo);
  const Config reward = plan_of("pairs.jsonl", {"preference.loss=reward"}).loaded.config;
  EXPECT_TRUE(reward.model.scores());
  EXPECT_FALSE(reward.sampling.at_ends) << "a reward model writes no text";
  EXPECT_EQ(reward.optimizer.lr, 1e-4);
}

TEST_F(Finetune, AFieldOfAnotherNameIsReadWhenItIsNamed) {
  std::string lines;
  for (int i = 0; i < 50; ++i)
    lines += format("{{\"body\": \"Text {} of fifty, which tells of ships.\"}}\n", i);
  write_text(*folder_ / "body.jsonl", lines);
  EXPECT_CONTAINS(message_of<UsageError>([&] { plan_of("body.jsonl"); }), "the keys body",
                  "data.sources.0.field=NAME");
  EXPECT_EQ(plan_of("body.jsonl", {"data.sources.0.field=body"}).loaded.config.data.sources.at(0).field,
            "body");
}

TEST(RecordFormats, AreFoundByTheKeysOfARecord) {
  const auto layout = [](const char* record) { return format_of_record(Json::parse(record), "here").layout; };
  EXPECT_EQ(layout(R"({"messages": [{"role": "user", "content": "a"}]})"), ChatLayout::messages);
  EXPECT_EQ(layout(R"({"conversations": [{"role": "user", "content": "a"}]})"), ChatLayout::messages);
  EXPECT_EQ(layout(R"({"conversations": [{"from": "human", "value": "a"}]})"), ChatLayout::sharegpt);
  EXPECT_EQ(layout(R"({"instruction": "a", "input": "", "output": "b"})"), ChatLayout::alpaca);
  EXPECT_EQ(layout(R"({"prompt": "a", "completion": "b"})"), ChatLayout::prompt_completion);
  EXPECT_EQ(layout(R"({"prompt": "a", "completion": "b", "label": true})"), ChatLayout::unpaired_preference);
  EXPECT_EQ(layout(R"({"prompt": "a", "completion": "b", "label": "noun"})"), ChatLayout::prompt_completion);
  EXPECT_EQ(layout(R"({"instruction": "a", "output": "b", "kto_tag": false})"),
            ChatLayout::unpaired_preference);
  EXPECT_EQ(layout(R"({"instruction": "a", "output": "b", "kto_tag": 0})"), ChatLayout::unpaired_preference);
  EXPECT_EQ(
      layout(
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": false})"),
      ChatLayout::unpaired_preference);
  EXPECT_EQ(layout(R"({"instruction": "a", "output": "b", "label": 3})"), ChatLayout::alpaca);
  EXPECT_EQ(layout(R"({"text": "a"})"), std::nullopt);
  EXPECT_EQ(layout(R"({"text": "a", "label": true})"), std::nullopt);
  EXPECT_EQ(layout(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"), ChatLayout::preference);
  EXPECT_CONTAINS(message_of<UsageError>([&] { layout(R"({"question": "a", "answer": "b"})"); }),
                  "question, answer", "expected messages");
}

}  // namespace
}  // namespace stepforge::testing
