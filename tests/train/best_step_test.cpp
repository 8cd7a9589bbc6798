// SPDX-License-Identifier: Apache-2.0
// checkpoint.keep_best and training.early_stopping: they follow the validation loss, also over interruptions and on ranks.
#include "stepforge/train/best_step.h"

#include <algorithm>
#include <limits>

#include "stepforge/metrics/names.h"
#include "stepforge/tensorfile/manifest.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

struct Validated {
  int64_t step = 0;
  double loss = 0.0;
  bool operator==(const Validated&) const = default;
};

std::vector<Validated> validations_of(const fs::path& run) {
  std::vector<Validated> found;
  for (const MetricsRecord& record : read_jsonl(run / "metrics.jsonl"))
    if (record.kind == "validation") found.push_back({record.step, *record.find(metric::validation_loss)});
  return found;
}

Validated lowest(const std::vector<Validated>& validations) {
  return *std::ranges::min_element(validations, {}, &Validated::loss);
}

/// A run of 40 steps whose rate grows until it does harm: the validation loss falls, and then rises.
Strings rise_and_fall(const TempFolder& folder, const std::string& name, const Strings& more = {}) {
  write_text(folder / "tale.txt", some_text(120));
  return trainer_run(folder / name) +
         Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                 "data.document=line",
                 "data.validation_fraction=0.2",
                 "validation.freq=2",
                 "checkpoint.interval=4",
                 "checkpoint.keep_latest_k=2",
                 "training.steps=40",
                 "optimizer.lr=1",
                 "lr_scheduler.warmup_steps=40"} +
         more;
}

Strings steps_in(const fs::path& run) {
  Strings names;
  for (const CheckpointFolder& folder : list_checkpoints(run / "checkpoint"))
    names.push_back(format("{}", folder.step));
  return names;
}

/// The step at which a run with these losses ends.
int64_t end_by_rule(const std::vector<Validated>& validations, int64_t patience, double min_gain) {
  double gained = std::numeric_limits<double>::infinity();
  int64_t waited = 0;
  for (const Validated& one : validations) {
    const bool gains = one.loss < gained - min_gain;
    if (gains) gained = one.loss;
    waited = gains ? 0 : waited + 1;
    if (waited == patience) return one.step;
  }
  return -1;
}

/// Asks to stop after a step.
class StopAfter : public Callback {
 public:
  StopAfter(InterruptWatcher& interrupts, int64_t step) : interrupts_(interrupts), step_(step) {}
  std::string_view name() const override { return "stop"; }
  void step_end(Trainer& trainer) override {
    if (trainer.state.step == step_) interrupts_.request();
  }

 private:
  InterruptWatcher& interrupts_;
  int64_t step_;
};

TEST(KeepBest, TheStepWithTheLowestValidationLossStaysBesideTheLatest) {
  const TempFolder folder;
  TestRun run(rise_and_fall(folder, "run", {"checkpoint.keep_best=true"}));
  run.run();
  const Validated best = lowest(validations_of(folder / "run"));
  ASSERT_GT(best.step, 2) << "the loss falls at first";
  ASSERT_LT(best.step, 36) << "and then rises";
  EXPECT_EQ(steps_in(folder / "run"), (Strings{"40", "36", format("{}", best.step)}));
  EXPECT_EQ(best_checkpoint(folder / "run"), folder / "run" / "checkpoint" / format("step-{}", best.step));
  EXPECT_CONTAINS(run.log_text(),
                  format("lowest validation loss: {:.4f} at step {}, kept in ", best.loss, best.step));
}

TEST(KeepBest, OffTheBestStepIsDeletedAndTheNewestCountsAsTheBest) {
  const TempFolder folder;
  TestRun(rise_and_fall(folder, "run")).run();
  EXPECT_EQ(steps_in(folder / "run"), (Strings{"40", "36"}));
  EXPECT_EQ(best_checkpoint(folder / "run"), folder / "run" / "checkpoint" / "step-40");
}

TEST(KeepBest, ChangesNoStepOfTheRun) {
  const TempFolder folder;
  const Records with = TestRun(rise_and_fall(folder, "with", {"checkpoint.keep_best=true"})).run();
  EXPECT_EQ(with, TestRun(rise_and_fall(folder, "without")).run());
}

TEST(EarlyStopping, TheRunEndsAfterSoManyValidationsWithoutAGain) {
  const TempFolder folder;
  TestRun(rise_and_fall(folder, "whole")).run();
  const std::vector<Validated> whole = validations_of(folder / "whole");
  for (const auto& [patience, min_gain] : {std::pair(1, 0.0), std::pair(3, 0.0), std::pair(3, 0.2)}) {
    const int64_t end = end_by_rule(whole, patience, min_gain);
    ASSERT_GT(end, 0);
    ASSERT_LT(end, 40);
    const std::string name = format("{}-{}", patience, min_gain);
    TestRun run(rise_and_fall(folder, name,
                              {format("training.early_stopping.patience={}", patience),
                               format("training.early_stopping.min_gain={}", min_gain)}));
    run.build();
    EXPECT_EQ(run.trainer().run(), RunOutcome::completed);
    EXPECT_EQ(run.trainer().state.step, end) << name;
    EXPECT_EQ(steps_in(folder / name).front(), format("{}", end)) << "the last step is saved";
    EXPECT_CONTAINS(run.log_text(), format("early stopping at step {} of 40", end));
    EXPECT_CONTAINS(read_file(folder / name / "run.json"), "completed");
  }
}

TEST(EarlyStopping, ARunThatEndedDoesNothingAndGoesOnWithMorePatience) {
  const TempFolder folder;
  const Records whole = TestRun(rise_and_fall(folder, "whole")).run();
  const Strings patient{"training.early_stopping.patience=2"};
  TestRun(rise_and_fall(folder, "run", patient)).run();
  {
    TestRun again(rise_and_fall(folder, "run", patient));
    EXPECT_TRUE(again.run().empty());
    EXPECT_CONTAINS(again.log_text(), "nothing to do: the run ended early at step");
  }
  const Records rest = TestRun(rise_and_fall(folder, "run", {"training.early_stopping.patience=1000"})).run();
  ASSERT_FALSE(rest.empty());
  EXPECT_EQ(rest.back(), whole.back());
}

TEST(BestStep, ARunThatIsInterruptedAnywhereKeepsAndEndsAsOneThatIsNot) {
  const TempFolder folder;
  const Strings asked{"checkpoint.keep_best=true", "training.early_stopping.patience=3"};
  TestRun whole(rise_and_fall(folder, "whole", asked));
  whole.run();
  const int64_t end = whole.trainer().state.step;
  const Strings kept = steps_in(folder / "whole");
  for (int64_t cut = 1; cut < end; cut += 3) {
    const std::string name = format("cut-{}", cut);
    {
      InterruptWatcher interrupts([](int) {});
      TestRun first(rise_and_fall(folder, name, asked), &interrupts);
      first.build().add_callback(std::make_unique<StopAfter>(interrupts, cut));
      EXPECT_EQ(first.trainer().run(), RunOutcome::interrupted);
      EXPECT_EQ(first.trainer().state.step, cut);
    }
    TestRun second(rise_and_fall(folder, name, asked));
    second.run();
    EXPECT_EQ(second.trainer().state.step, end) << cut;
    EXPECT_EQ(validations_of(folder / name), validations_of(folder / "whole")) << cut;
    EXPECT_EQ(best_checkpoint(folder / name).filename(), best_checkpoint(folder / "whole").filename()) << cut;
    EXPECT_EQ(steps_in(folder / name).back(), kept.back()) << cut;
  }
}

TEST(BestStep, AllRanksEndTogetherAndKeepTheStepOfOneRank) {
  const TempFolder folder;
  const Strings asked{"checkpoint.keep_best=true", "training.early_stopping.patience=3",
                      "training.reduction=ordered", "training.local_batch_size=1",
                      "training.global_batch_size=4"};
  TestRun one(rise_and_fall(folder, "one", asked));
  one.run();
  const auto ranks = RankThreads(2).run(rise_and_fall(folder, "two", asked));
  for (const Records& records : ranks) {
    ASSERT_FALSE(records.empty());
    EXPECT_EQ(records.back().step, one.trainer().state.step);
  }
  EXPECT_EQ(steps_in(folder / "two"), steps_in(folder / "one"));
}

TEST(BestStep, WithoutValidationItIsRefused) {
  const auto refused = [](const Strings& settings) {
    return message_of<UsageError>(
        [&] { load_config(std::nullopt, Strings{"preset=debug", "validation.freq=0"} + settings); });
  };
  EXPECT_CONTAINS(refused({"checkpoint.keep_best=true"}), "checkpoint.keep_best", "set validation.freq");
  EXPECT_CONTAINS(refused({"training.early_stopping.patience=2"}), "training.early_stopping.patience",
                  "set validation.freq");
  EXPECT_CONTAINS(refused({"checkpoint.keep_best=true", "validation.freq=2", "checkpoint.enable=false"}),
                  "checkpoint.enable");
}

}  // namespace
}  // namespace stepforge::testing
