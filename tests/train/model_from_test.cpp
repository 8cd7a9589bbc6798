// SPDX-License-Identifier: Apache-2.0
// model.from: a run that starts from another run, a checkpoint or a Hugging Face folder.
#include "stepforge/checkpoint/hf_folder.h"
#include "tests/catalog/all_families.h"
#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

/// A run of 4 steps in `folder`/first.
Strings first_run(const TempFolder& folder) {
  return trainer_run(folder / "first") + Strings{"training.steps=4"};
}

/// A run that starts from `model`, with no keys of [model].
Strings run_from(const TempFolder& folder, const std::filesystem::path& model) {
  return {format("model.from={}", model.string()),
          format("run_dir={}", (folder / "second").string()),
          format("data.cache_dir={}", (folder / "cache").string()),
          "data.sources=[{format=\"synthetic\"}]",
          "data.synthetic_tokens=4096",
          "training.seq_len=32",
          "training.local_batch_size=2",
          "training.threads=1",
          "training.steps=4",
          "checkpoint.interval=2"};
}

void expect_weights_of(Trainer& trainer, Trainer& other) {
  ASSERT_EQ(trainer.store->size(), other.store->size());
  for (size_t unit = 0; unit < trainer.store->size(); ++unit)
    EXPECT_TRUE(at::equal(trainer.store->unit(unit).master(), other.store->unit(unit).master())) << unit;
}

TEST(ModelFrom, ARunStartsWithTheWeightsOfAnother) {
  const TempFolder folder;
  TestRun first(first_run(folder));
  first.run();
  TestRun second(run_from(folder, folder / "first"));
  Trainer& trainer = second.build();
  expect_weights_of(trainer, first.trainer());
  EXPECT_EQ(trainer.state.step, 0);
  EXPECT_EQ(trainer.config.optimizer.lr, 2e-5);
  EXPECT_CONTAINS(second.log_text(), format("from {}: llama, ", (folder / "first").string()), " layers, dim ",
                  "defaults of a fine-tune: lr_scheduler.warmup_steps = 20, optimizer.lr = 2e-5");
}

TEST(ModelFrom, LayersOfMultiTokenPredictionMayBeLeftOut) {
  const TempFolder folder;
  TestRun(first_run(folder) + setting_overrides("deepseek_v3") +
          Strings{"model.first_dense_layers=1", "model.n_mtp_layers=1", "model.mtp_loss_weight=0.1"})
      .run();
  TestRun second(run_from(folder, folder / "first") + Strings{"model.n_mtp_layers=0"});
  EXPECT_EQ(second.build().job.whole.ahead, 0);
}

TEST(ModelFrom, TheRunNoLongerNeedsTheModelOnceItHasACheckpoint) {
  const TempFolder folder;
  TestRun(first_run(folder)).run();
  const Strings args = run_from(folder, folder / "first");
  const std::vector<StepRecord> uncut =
      TestRun(args + Strings{format("run_dir={}", (folder / "uncut").string())}).run();
  TestRun(args).run(2);
  std::filesystem::remove_all(folder / "first");
  Logger log;
  Trainer trainer(load_config(folder / "second" / "config.toml", {}, ConfigUse::inspect), log, nullptr);
  trainer.build();
  EXPECT_EQ(trainer.state.step, 2);
  trainer.run();
  EXPECT_EQ(bits_of(trainer), uncut.back().bits);
}

TEST(ModelFrom, AVocabularyGrows) {
  const TempFolder folder;
  TestRun first(first_run(folder));
  first.run();
  const int64_t tokens = first.trainer().config.model.vocab_size;
  TestRun second(run_from(folder, folder / "first" / "checkpoint" / "step-4") +
                 Strings{format("model.vocab_size={}", tokens + 7)});
  Trainer& trainer = second.build();
  EXPECT_EQ(trainer.job.whole.vocab_size, tokens + 7);
  EXPECT_CONTAINS(second.log_text(), "the vocabulary has 7 more tokens than");
  trainer.run();
}

}  // namespace
}  // namespace stepforge::testing
