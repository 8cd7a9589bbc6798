// SPDX-License-Identifier: Apache-2.0
// checkpoint.load and checkpoint.strict: what a run takes from a checkpoint beside its weights, and what it accepts.
#include <ATen/ops/equal.h>

#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

/// 8 steps, a checkpoint after each second one.
Strings switched_run(const TempFolder& folder, const std::string& name, const Strings& more = {}) {
  return trainer_run(folder / name) + Strings{"checkpoint.interval=2", "lr_scheduler.warmup_steps=2"} + more;
}

/// A run of its own that starts from step 4 of "run".
Strings continued_elsewhere(const TempFolder& folder, const Strings& more) {
  return switched_run(
      folder, "other",
      Strings{format("checkpoint.initial_load_path={}", (folder / "run" / "checkpoint" / "step-4").string()),
              "checkpoint.initial_load_model_only=false"} +
          more);
}

bool moments_are_zero(const Trainer& trainer) {
  for (size_t unit = 0; unit < trainer.store->size(); ++unit)
    for (const at::Tensor& slot : trainer.optimizer->state(unit).slots())
      if (slot.count_nonzero().item<int64_t>() > 0) return false;
  return true;
}

const Strings kNoOptimizer{"checkpoint.load.optimizer=false"};
const Strings kNoSchedule{"checkpoint.load.schedule=false"};

TEST(LoadSwitches, TheOptimizerBeginsAnewOnce) {
  const TempFolder folder;
  TestRun(switched_run(folder, "run")).run(4);
  {
    TestRun fresh(switched_run(folder, "run", kNoOptimizer));
    Trainer& trainer = fresh.build();
    EXPECT_EQ(trainer.state.step, 4);
    EXPECT_EQ(trainer.optimizer->steps(), 0);
    EXPECT_TRUE(moments_are_zero(trainer));
    EXPECT_CONTAINS(fresh.log_text(), "at step 4; not loaded: optimizer", "continues without a warm-up");
    trainer.total_steps = 6;
    trainer.run();
  }
  TestRun again(switched_run(folder, "run", kNoOptimizer));
  EXPECT_EQ(again.build().optimizer->steps(), 2);
  EXPECT_FALSE(moments_are_zero(again.trainer()));
}

TEST(LoadSwitches, ANewScheduleLastsForTheRestOfTheRunAndIsResumedExactly) {
  const TempFolder folder;
  TestRun(switched_run(folder, "run")).run(4);
  std::filesystem::copy(folder / "run", folder / "uncut", std::filesystem::copy_options::recursive);
  Records uncut;
  {
    TestRun run(switched_run(folder, "uncut", kNoSchedule));
    uncut = run.run();
    ASSERT_EQ(uncut.size(), 4U);
    const LearningRateSchedule expected(run.trainer().config.lr_scheduler, 4);
    for (int64_t step = 0; step < 4; ++step)
      EXPECT_EQ(uncut[static_cast<size_t>(step)].lr, 8e-4 * expected.factor(step));
  }
  TestRun(switched_run(folder, "run", kNoSchedule)).run(6);
  const auto rest = TestRun(switched_run(folder, "run", kNoSchedule)).run();
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest.back(), uncut.back());
  // Without the switch the schedule of the checkpoint goes on.
  TestRun later(switched_run(folder, "uncut", {"training.steps=10"}));
  EXPECT_EQ(later.build().state.schedule_begin, 4);
}

TEST(LoadSwitches, OtherDataBeginAnew) {
  const TempFolder folder;
  TestRun(switched_run(folder, "run")).run(4);
  const Strings other_data{"data.synthetic_tokens=8192", "training.global_batch_size=2"};
  const auto first = TestRun(switched_run(folder, "fresh", other_data)).run(1);
  TestRun continued(switched_run(folder, "run", other_data + Strings{"checkpoint.load.data=false"}));
  const auto records = continued.run();
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(records.front().step, 5);
  EXPECT_EQ(records.front().tokens, first.front().tokens);
  EXPECT_CONTAINS(continued.log_text(), "changed since the checkpoint: data.synthetic_tokens");
}

TEST(LoadSwitches, CountersBeginAnewInANewRunOnly) {
  const TempFolder folder;
  TestRun(switched_run(folder, "run")).run(4);
  const Strings no_counters = kNoSchedule + Strings{"checkpoint.load.counters=false"};
  {
    TestRun other(continued_elsewhere(folder, no_counters));
    Trainer& trainer = other.build();
    EXPECT_EQ(trainer.state.step, 0);
    EXPECT_EQ(trainer.state.tokens, 0);
    EXPECT_EQ(trainer.optimizer->steps(), 4);
    EXPECT_EQ(trainer.loader->state().rows_consumed, 16);
    trainer.run();
    EXPECT_EQ(other.records.size(), 8U);
    EXPECT_EQ(other.records.front().step, 1);
  }
  EXPECT_TRUE(TestRun(continued_elsewhere(folder, no_counters)).run().empty())
      << "its own steps are continued";

  TestRun own(switched_run(folder, "run", no_counters));
  EXPECT_CONTAINS(message_of<UsageError>([&] { own.build(); }), "checkpoint.load.counters = false",
                  "is a checkpoint of this run", "name another run_dir");
}

TEST(LoadSwitches, AreTheSameOnSeveralRanks) {
  const TempFolder folder;
  TestRun(switched_run(folder, "run")).run(4);
  std::filesystem::copy(folder / "run", folder / "two", std::filesystem::copy_options::recursive);
  const Strings ordered{"training.reduction=ordered", "training.local_batch_size=1",
                        "checkpoint.load.data=false"};
  const Strings switches = kNoOptimizer + kNoSchedule + ordered;
  const auto one = TestRun(switched_run(folder, "run", switches)).run();
  const auto two = RankThreads(2).run(switched_run(folder, "two", switches));
  expect_same_numbers(two, numbers(one), "two ranks");
}

TEST(LoadSwitches, CombinationsWithoutAMeaningAreRefused) {
  const TempFolder folder;
  EXPECT_CONTAINS(message_of<UsageError>(
                      [&] { TestRun(switched_run(folder, "run", {"checkpoint.load.counters=false"})); }),
                  "checkpoint.load.schedule = true", "set schedule to false too");
  EXPECT_CONTAINS(
      message_of<UsageError>([&] {
        TestRun(switched_run(folder, "run",
                             {"checkpoint.load.data=false", "training.steps=0", "training.epochs=2"}));
      }),
      "training.epochs = 2", "set training.steps instead");
}

TEST(Strict, OffAcceptsAModelOfOtherShapesAndTellsWhatItDid) {
  const TempFolder folder;
  TestRun first(switched_run(folder, "run"));
  first.run(4);
  const Strings larger{
      format("checkpoint.initial_load_path={}", (folder / "run" / "checkpoint" / "step-4").string()),
      "model.n_layers=3", "checkpoint.allow_changed=model"};
  TestRun strict(switched_run(folder, "strict", larger));
  EXPECT_CONTAINS(message_of<Error>([&] { strict.build(); }), "do not fit the model",
                  "missing: model.layers.2.input_layernorm.weight");
  TestRun lenient(switched_run(folder, "lenient", larger + Strings{"checkpoint.strict=false"}));
  Trainer& trainer = lenient.build();
  EXPECT_CONTAINS(lenient.log_text(), "checkpoint.strict = false: ",
                  "missing: model.layers.2.input_layernorm.weight [32]: keeps its initial values");
  EXPECT_TRUE(at::equal(trainer.store->unit(1).master(), first.trainer().store->unit(1).master()));
  trainer.run();
  EXPECT_EQ(lenient.records.size(), 8U);
}

/// A unit that was frozen has no moments in the checkpoint.
TEST(Strict, OffResumesARunThatTrainsMoreUnits) {
  const TempFolder folder;
  TestRun(switched_run(folder, "run", {"model.freeze=layers.0"})).run(4);
  const Strings thawed{"checkpoint.allow_changed=model"};
  EXPECT_CONTAINS(message_of<Error>([&] { TestRun(switched_run(folder, "run", thawed)).build(); }),
                  "missing: optim.state.model.layers.0.");
  TestRun lenient(switched_run(folder, "run", thawed + Strings{"checkpoint.strict=false"}));
  EXPECT_EQ(lenient.build().optimizer->steps(), 4);
  lenient.trainer().run();
  EXPECT_EQ(lenient.records.size(), 4U);
}

}  // namespace
}  // namespace stepforge::testing
