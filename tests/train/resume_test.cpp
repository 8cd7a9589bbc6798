// SPDX-License-Identifier: Apache-2.0
// A run that is cut after any step and resumed is, bit for bit, the run that was never cut.
#include <algorithm>

#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

/// Accumulation, dropout, packed synthetic documents mixed with text, validation, warm-up, flat part and
/// decay, epochs shorter than the run; a checkpoint after each step.
Strings everything_on(const TempFolder& folder, int64_t steps) {
  write_text(folder / "tale.txt", some_text(30));
  return trainer_run(folder / "run") +
         Strings{format("training.steps={}", steps),
                 "model.dropout=0.1",
                 format("data.sources=[{{format=\"synthetic\"}},{{path=\"{}\",weight=0.5}}]",
                        (folder / "tale.txt").string()),
                 "data.document=line",
                 "data.synthetic_tokens=1024",
                 "data.synthetic_document_length=11",
                 "data.validation_fraction=0.2",
                 "validation.freq=4",
                 "validation.steps=2",
                 "lr_scheduler.warmup_steps=5",
                 "lr_scheduler.decay_ratio=0.5",
                 "lr_scheduler.decay_type=cosine",
                 "checkpoint.interval=1",
                 "checkpoint.keep_latest_k=0",
                 "metrics.log_freq=1"};
}

/// Resumes after step `cut` and compares up to `last` with the run that was not cut.
void expect_same_after(const Strings& args, int64_t cut, int64_t last, const std::vector<StepRecord>& uncut,
                       const std::vector<EvaluationResult>& validations) {
  TestRun resumed(args + Strings{format("checkpoint.load_step={}", cut), "checkpoint.enable=false"});
  resumed.build();
  ASSERT_TRUE(resumed.trainer().resumed);
  ASSERT_EQ(resumed.trainer().state.step, cut);
  ASSERT_EQ(bits_of(resumed.trainer()), uncut.at(static_cast<size_t>(cut) - 1).bits)
      << "restored at step " << cut;
  resumed.trainer().add_callback(std::make_unique<CallAt>([&](Trainer& trainer) {
    const auto place = static_cast<size_t>(trainer.state.step / 4 - 1);
    if (trainer.state.step % 4 == 0 && place < validations.size()) {
      trainer.validate();
      EXPECT_EQ(trainer.last_validation.loss, validations[place].loss);
    }
  }));
  resumed.trainer().total_steps = std::min(last, resumed.trainer().total_steps);
  resumed.trainer().run();
  ASSERT_EQ(resumed.records.size(), static_cast<size_t>(last - cut));
  for (const StepRecord& record : resumed.records) {
    const StepRecord& expected = uncut.at(static_cast<size_t>(record.step) - 1);
    ASSERT_EQ(record, expected) << "cut at " << cut;
  }
}

TEST(Resume, AfterEveryStepOfFortyIsBitEqualToTheUncutRun) {
  constexpr int64_t steps = 40;
  const TempFolder folder;
  const Strings args = everything_on(folder, steps);
  std::vector<StepRecord> uncut;
  std::vector<EvaluationResult> validations;
  {
    TestRun whole(args);
    whole.build();
    whole.trainer().add_callback(std::make_unique<CallAt>([&](Trainer& trainer) {
      if (trainer.state.step % 4 != 0) return;
      trainer.validate();
      validations.push_back(trainer.last_validation);
    }));
    ASSERT_LT(whole.trainer().data.train->rows_per_epoch() / whole.trainer().job.batch.rows_per_step,
              steps / 2)
        << "epochs must end inside the run";
    ASSERT_EQ(whole.trainer().job.batch.micro_batches(), 2);
    whole.trainer().run();
    uncut = whole.records;
  }
  ASSERT_EQ(uncut.size(), static_cast<size_t>(steps));
  ASSERT_EQ(validations.size(), static_cast<size_t>(steps / 4));
  for (int64_t cut = 1; cut < steps; ++cut) {
    const int64_t last = long_tests() ? steps : std::min(cut + 3, steps);
    expect_same_after(args, cut, last, uncut, validations);
    if (HasFatalFailure()) return;
  }
}

struct Variant {
  const char* name;
  Strings args;
};

class ResumeVariant : public ::testing::TestWithParam<Variant> {};

TEST_P(ResumeVariant, IsBitEqualToTheUncutRun) {
  constexpr int64_t steps = 8;
  const TempFolder folder;
  const Strings args = everything_on(folder, steps) + GetParam().args;
  const std::vector<StepRecord> uncut = TestRun(args).run();
  ASSERT_EQ(uncut.size(), static_cast<size_t>(steps));
  for (const int64_t cut : {1, 3, 4, 7}) {
    expect_same_after(args, cut, steps, uncut, {});
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, ResumeVariant,
    ::testing::Values(
        Variant{"OrderedReductionAndRecomputation",
                {"training.reduction=ordered", "activation_checkpoint.mode=full"}},
        Variant{"Bf16", {"precision.compute=bf16"}},
        Variant{"Qwen3Tied", {"model.family=qwen3", "model.tie_embeddings=true"}},
        Variant{"SkippedStep",
                {"training.nonfinite=skip", "debug.plant_nan_step=3", "debug.plant_nan_block=layers.1"}},
        // Finds what went wrong in Megatron-LM#4705 (rates of groups overwritten).
        Variant{"EpochsAndParameterGroups",
                {"training.steps=0", "training.epochs=1", "data.synthetic_tokens=512",
                 "data.sources=[{format=\"synthetic\"}]", "data.synthetic_document_length=0",
                 "data.validation_fraction=0.0", "validation.freq=0", "training.global_batch_size=2",
                 "optimizer.param_groups=[{pattern=\"embed\",lr=1e-4}]"}}),
    [](const ::testing::TestParamInfo<Variant>& variant) { return std::string(variant.param.name); });

TEST(Resume, GoesOnFromTheNewestStepByItself) {
  const TempFolder folder;
  const Strings args = everything_on(folder, 6);
  const std::vector<StepRecord> uncut = TestRun(args).run();
  std::filesystem::remove_all(folder / "run");
  TestRun(args).run(2);
  TestRun(args).run(4);
  const std::vector<StepRecord> rest = TestRun(args).run();
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest[0], uncut[4]);
  EXPECT_EQ(rest[1], uncut[5]);
}

TEST(Resume, OfAnOptimizerWithoutStateNeedsNoFilesOfIt) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run") + Strings{"optimizer.name=sgd", "optimizer.momentum=0",
                                                             "training.steps=4", "checkpoint.interval=2"};
  const std::vector<StepRecord> uncut =
      TestRun(args + Strings{format("run_dir={}", (folder / "uncut").string())}).run();
  TestRun(args).run(2);
  EXPECT_EQ(TestRun(args).run(), std::vector(uncut.begin() + 2, uncut.end()));
}

TEST(Resume, OffIsRefusedWhereARunWouldBeLost) {
  const TempFolder folder;
  const Strings args = everything_on(folder, 3) + Strings{"checkpoint.resume=false"};
  TestRun(args).run();
  const std::string metrics = read_file(folder / "run" / "metrics.jsonl");
  TestRun again(args);
  const std::string message = message_of<UsageError>([&] { again.build(); });
  EXPECT_CONTAINS(message, format("the folder {} holds the metrics", (folder / "run").string())) << message;
  EXPECT_CONTAINS(message, "name another run_dir");
  EXPECT_EQ(read_file(folder / "run" / "metrics.jsonl"), metrics);
  EXPECT_TRUE(std::filesystem::exists(folder / "run" / "checkpoint" / "step-3"));
}

/// Asks the run to stop between a step and its validation.
class StopAtLog : public Callback {
 public:
  StopAtLog(InterruptWatcher& interrupts, int64_t step) : interrupts_(interrupts), step_(step) {}
  std::string_view name() const override { return "stop"; }
  void log(Trainer& trainer, MetricsRecord& /*record*/) override {
    if (trainer.state.step == step_) interrupts_.request();
  }

 private:
  InterruptWatcher& interrupts_;
  int64_t step_;
};

/// Kind, step and values that do not depend on the clock, in order.
Strings records_of(const std::filesystem::path& run) {
  Strings lines;
  for (const MetricsRecord& record : read_jsonl(run / "metrics.jsonl")) {
    const std::string_view loss = record.kind == "train" ? metric::loss : metric::validation_loss;
    lines.push_back(format("{} {} {}", record.kind, record.step, *record.find(loss)));
  }
  return lines;
}

TEST(Resume, MakesUpForAValidationThatWasInterrupted) {
  const TempFolder folder;
  const Strings args = everything_on(folder, 8) + Strings{"checkpoint.interval=100"};
  const Strings other = {format("run_dir={}", (folder / "cut").string())};
  TestRun(args).run();
  for (const int64_t step : {4, 8}) {
    InterruptWatcher interrupts([](int) {});
    TestRun cut(args + other, &interrupts);
    cut.build().add_callback(std::make_unique<StopAtLog>(interrupts, step));
    EXPECT_EQ(cut.trainer().run(), RunOutcome::interrupted);
    EXPECT_EQ(cut.trainer().state.step, step);
    EXPECT_EQ(records_of(folder / "cut").back().substr(0, 7), format("train {}", step));
  }
  EXPECT_TRUE(TestRun(args + other + Strings{"checkpoint.save_at_end=false"}).run().empty())
      << "only the validation was missing";
  EXPECT_EQ(records_of(folder / "cut"), records_of(folder / "run"));
  // The same once more, as after a crash right behind the validation.
  TestRun(args + other + Strings{"checkpoint.save_at_end=false"}).run();
  EXPECT_EQ(records_of(folder / "cut"), records_of(folder / "run"));
}

TEST(Resume, OfACompletedRunTrainsNoFurtherStepAndWritesNoCheckpoint) {
  const TempFolder folder;
  const Strings args = everything_on(folder, 3);
  TestRun(args).run();
  const auto step_folder = folder / "run" / "checkpoint" / "step-3";
  const auto written = std::filesystem::last_write_time(step_folder / "manifest.json");
  EXPECT_TRUE(TestRun(args).run().empty());
  EXPECT_EQ(std::filesystem::last_write_time(step_folder / "manifest.json"), written);
}

TEST(Resume, OfAnotherRunsStepByPathContinuesItsCounters) {
  const TempFolder folder;
  const std::vector<StepRecord> uncut = TestRun(everything_on(folder, 6)).run();
  const Strings elsewhere =
      everything_on(folder, 6) +
      Strings{format("run_dir={}", (folder / "other").string()),
              format("checkpoint.initial_load_path={}", (folder / "run" / "checkpoint" / "step-4").string()),
              "checkpoint.initial_load_model_only=false"};
  const std::vector<StepRecord> rest = TestRun(elsewhere).run();
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest[1], uncut[5]);
}

TEST(InitialLoad, OfWeightsOnlyStartsAtStepZeroWithTheseWeights) {
  const TempFolder folder;
  TestRun first(everything_on(folder, 4));
  first.run();
  TestRun second(everything_on(folder, 4) +
                 Strings{format("run_dir={}", (folder / "other").string()),
                         format("checkpoint.initial_load_path={}",
                                (folder / "run" / "checkpoint" / "step-4").string())});
  Trainer& trainer = second.build();
  EXPECT_EQ(trainer.state.step, 0);
  EXPECT_EQ(trainer.optimizer->steps(), 0);
  EXPECT_FALSE(trainer.resumed);
  for (size_t unit = 0; unit < trainer.store->size(); ++unit) {
    EXPECT_TRUE(at::equal(trainer.store->unit(unit).master(), first.trainer().store->unit(unit).master()));
  }
}

}  // namespace
}  // namespace stepforge::testing
