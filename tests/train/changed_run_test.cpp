// SPDX-License-Identifier: Apache-2.0
// A checkpoint of another run, or a damaged one, is not continued by mistake.
#include <csignal>

#include <ATen/Parallel.h>
#include <sys/resource.h>

#include "stepforge/checkpoint/native.h"
#include "tests/support/flip_bit.h"
#include "tests/train/fixture.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// Trains 4 steps, one checkpoint a step.
Strings trained(const TempFolder& folder) {
  const Strings args = trainer_run(folder / "run") + Strings{"checkpoint.interval=1"};
  TestRun(args).run(4);
  return args;
}

struct Change {
  const char* name;
  Strings args;
  const char* field;
  const char* group;
};

class GuardedChange : public ::testing::TestWithParam<Change> {};

TEST_P(GuardedChange, IsRefusedWithTheRemedy) {
  const TempFolder folder;
  const Strings args = trained(folder) + GetParam().args;
  TestRun run(args);
  const std::string message = message_of<UsageError>([&] { run.build(); });
  EXPECT_CONTAINS(message, "step-4 belongs to another run");
  EXPECT_CONTAINS(message, GetParam().field);
  EXPECT_CONTAINS(message, "in the checkpoint");
  EXPECT_CONTAINS(message, format("checkpoint.allow_changed = [\"{}\"]", GetParam().group));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, GuardedChange,
    ::testing::Values(
        Change{"Model", {"model.dim=64"}, "model.dim: 32 in the checkpoint, 64 now", "model"},
        Change{"Seed", {"training.seed=7"}, "training.seed: 42 in the checkpoint, 7 now", "seed"},
        Change{"DataSeed", {"data.seed=7"}, "data.seed: 42", "seed"},
        Change{"RowLength", {"training.seq_len=16"}, "training.seq_len: 32", "data"},
        Change{"SyntheticData", {"data.synthetic_tokens=8192"}, "data.synthetic_tokens: 4096", "data"},
        Change{"HeldOutShare", {"data.validation_fraction=0.1"}, "data.validation_fraction: 0.0", "data"},
        Change{"GlobalBatch", {"training.global_batch_size=8"}, "training.global_batch_size: 4", "batch"}),
    [](const ::testing::TestParamInfo<Change>& change) { return std::string(change.param.name); });

class AcceptedChange : public ::testing::TestWithParam<Change> {};

TEST_P(AcceptedChange, IsMadeWhenTheGroupIsAllowedAndToldInTheLog) {
  const TempFolder folder;
  TestRun run(trained(folder) + GetParam().args +
              Strings{format("checkpoint.allow_changed={}", GetParam().group)});
  run.run();
  EXPECT_EQ(run.records.size(), 4U);
  EXPECT_EQ(run.records.front().step, 5);
  EXPECT_CONTAINS(run.log_text(), format("changed since the checkpoint: {}", GetParam().field));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, AcceptedChange,
    ::testing::Values(
        Change{"Seed", {"training.seed=7"}, "training.seed: 42 in the checkpoint, 7 now", "seed"},
        Change{"DataSeed", {"data.seed=7"}, "data.seed", "seed"},
        Change{"RowLength", {"training.seq_len=16"}, "training.seq_len", "data"},
        Change{"GlobalBatch", {"training.global_batch_size=8"}, "training.global_batch_size", "batch"}),
    [](const ::testing::TestParamInfo<Change>& change) { return std::string(change.param.name); });

TEST(ChangedRun, ModelOfAnotherShapeIsRefusedEvenWhenAllowed) {
  const TempFolder folder;
  TestRun run(trained(folder) + Strings{"model.dim=64", "checkpoint.allow_changed=model"});
  const std::string message = message_of<Error>([&] { run.build(); });
  EXPECT_CONTAINS(message, "checkpoint of another model");
}

TEST(ChangedRun, LocalBatchIsFreeWhereTheGlobalBatchIsGivenAndGuardedWhereItIsNot) {
  const TempFolder folder;
  const Strings args = trained(folder);
  TestRun other_split(args + Strings{"training.local_batch_size=1"});
  EXPECT_EQ(other_split.run(5).size(), 1U);

  const Strings open = trainer_run(folder / "open") + Strings{"training.global_batch_size=-1"};
  TestRun(open).run(2);
  TestRun changed(open + Strings{"training.local_batch_size=4"});
  const std::string message = message_of<UsageError>([&] { changed.build(); });
  EXPECT_CONTAINS(message, "checkpoint.allow_changed = [\"batch\"]");
}

TEST(ChangedRun, OtherRanksThatChangeTheGlobalBatchAreRefusedUnlessItIsAllowed) {
  const TempFolder folder;
  const Strings open = trainer_run(folder / "open") + Strings{"training.global_batch_size=-1"};
  TestRun(open).run(2);
  const auto on_two = [&](const Strings& more) {
    RankThreads threads(2);
    threads.run([&](int) { return open + more; }, [](TestRun&, int) {});
    return threads.failures;
  };
  for (const std::string& failure : on_two({})) EXPECT_CONTAINS(failure, "training.global_batch_size: 2 in");
  EXPECT_EQ(on_two({"training.local_batch_size=1"}), (Strings{"", ""}));  // two rows as before
}

TEST(ChangedRun, HyperparametersAreToldInTheLog) {
  const TempFolder folder;
  TestRun run(trained(folder) + Strings{"optimizer.lr=1e-4", "lr_scheduler.warmup_steps=3"});
  run.run(5);
  const std::string log = run.log_text();
  EXPECT_TRUE(
      contains(log, "changed since the checkpoint: optimizer.lr: 0.0008 in the checkpoint, 0.0001 now") ||
      contains(log, "changed since the checkpoint: optimizer.lr: 8e-4 in the checkpoint, 1e-4 now"));
  EXPECT_CONTAINS(log, "lr_scheduler.warmup_steps: 2 in the checkpoint, 3 now");
  EXPECT_EQ(run.records.front().lr, 1e-4 * run.trainer().schedule->factor(4));
}

TEST(ChangedRun, LongerScheduleIsAWarningWithBothRatesAndTheKeyThatKeepsTheOldOne) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run");
  const double last = TestRun(args).run().back().lr;
  const Strings longer = args + Strings{"training.steps=16"};
  {
    TestRun kept(longer + Strings{"lr_scheduler.total_steps=8", "checkpoint.enable=false"});
    EXPECT_EQ(kept.run(9).at(0).lr, 0) << "the end of the schedule";
    EXPECT_FALSE(contains(kept.log_text(), "the schedule has"));
  }
  TestRun redrawn(longer);
  const double rate = redrawn.run(9).at(0).lr;
  EXPECT_GT(rate, last);
  const std::string expected = format(
      "the schedule has 16 steps instead of 8: the learning rate continues at {:.2e} instead of {:.2e}; "
      "lr_scheduler.total_steps=8 keeps the old schedule",
      rate, 0.0);
  EXPECT_CONTAINS(redrawn.log_text(), expected) << redrawn.log_text();
}

TEST(ChangedRun, WarmUpThatIsNotShorterThanTheScheduleIsAWarning) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run") + Strings{"lr_scheduler.warmup_steps=100"});
  run.build();
  EXPECT_CONTAINS(run.log_text(), "the warm-up (100 steps) is not shorter than the schedule (8 steps)");
}

TEST(ChangedRun, OtherThreadsAreAWarningThatNamesBothAndTheProcessor) {
  const TempFolder folder;
  const Strings args = trained(folder);
  {
    TestRun same(args + Strings{"checkpoint.enable=false"});
    same.run(5);
    EXPECT_FALSE(contains(same.log_text(), "the last bits can differ"));
  }
  TestRun run(args + Strings{"training.threads=2"});
  run.build();
  at::set_num_threads(1);
  const std::string log = run.log_text();
  EXPECT_CONTAINS(log, "uninterrupted run: saved with 1 thread on ") << log;
  EXPECT_CONTAINS(log, "resumed with 2 threads on ") << log;
}

TEST(Threads, OfARankAreItsShareOfTheHost) {
  unsetenv("OMP_NUM_THREADS");
  const auto threads_with = [](const Strings& args, int ranks_on_host) {
    const TempFolder folder;
    at::set_num_threads(4);
    TestRun run(trainer_run(folder / "run") + args);
    run.trainer().ranks_on_host = ranks_on_host;
    run.build();
    return at::get_num_threads();
  };
  EXPECT_EQ(threads_with({"training.threads=0"}, 2), 2);
  EXPECT_EQ(threads_with({"training.threads=0"}, 8), 1);
  EXPECT_EQ(threads_with({"training.threads=3"}, 2), 3) << "a given number is not divided";
  setenv("OMP_NUM_THREADS", "4", /*overwrite=*/1);
  EXPECT_EQ(threads_with({"training.threads=0"}, 2), 4) << "the launcher has divided already";
  unsetenv("OMP_NUM_THREADS");
  at::set_num_threads(1);
}

TEST(ChangedRun, WhereItWritesAndWhatItPrintsChangesSilently) {
  const TempFolder folder;
  TestRun run(trained(folder) + Strings{"metrics.log_freq=3", "checkpoint.keep_latest_k=3"});
  run.run(5);
  EXPECT_FALSE(contains(run.log_text(), "changed since the checkpoint"));
}

TEST(DamagedCheckpoint, IsPassedOverWithALoudLineForThePreviousOne) {
  const TempFolder folder;
  const Strings args = trained(folder);
  const auto& checkpoints = folder / "run" / "checkpoint";
  flip_bit(checkpoints / "step-4" / "model.safetensors");
  fs::resize_file(checkpoints / "step-3" / "optimizer.safetensors", 100);
  fs::remove(checkpoints / "step-2" / "state.json");
  TestRun run(args);
  run.run();
  ASSERT_EQ(run.records.front().step, 2);
  const std::string log = run.log_text();
  for (const char* part :
       {"error", "model.safetensors", "optimizer.safetensors", "state.json", "step-1 is used instead"}) {
    EXPECT_CONTAINS(log, part);
  }
}

TEST(DamagedCheckpoint, AskedForByStepIsAnError) {
  const TempFolder folder;
  const Strings args = trained(folder);
  flip_bit(folder / "run" / "checkpoint" / "step-3" / "model.safetensors");
  TestRun run(args + Strings{"checkpoint.load_step=3"});
  EXPECT_CONTAINS(message_of<Error>([&] { run.build(); }), "model.safetensors");
}

TEST(MissingCheckpoint, AskedForByStepIsAnErrorThatListsTheSteps) {
  const TempFolder folder;
  TestRun run(trained(folder) + Strings{"checkpoint.load_step=9"});
  EXPECT_CONTAINS(message_of<UsageError>([&] { run.build(); }), "4, 3, 2, 1");
}

/// While it lives no file grows beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

/// "saved 2" and "failed 4", in order.
class SaveRecorder : public Callback {
 public:
  explicit SaveRecorder(Strings& saves) : saves_(saves) {}
  std::string_view name() const override { return "saves"; }
  void save(Trainer& trainer, const std::filesystem::path& /*folder*/) override {
    saves_.push_back(format("saved {}", trainer.last_save.step));
  }
  void save_failed(Trainer& trainer, const std::string& reason) override {
    EXPECT_NE(reason, "");
    saves_.push_back(format("failed {}", trainer.last_save.step));
  }

 private:
  Strings& saves_;
};

TEST(FullDisk, DuringASaveCostsThatSaveOnlyAndIsTold) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run") + Strings{"checkpoint.interval=2"});
  Trainer& trainer = run.build();
  Strings saves;
  trainer.add_callback(std::make_unique<SaveRecorder>(saves));
  std::unique_ptr<FileSizeLimit> full;
  trainer.add_callback(std::make_unique<CallAt>([&](Trainer& now) {
    if (now.state.step == 3) full = std::make_unique<FileSizeLimit>(32 << 10);
    if (now.state.step == 5) full.reset();
  }));
  EXPECT_EQ(trainer.run(), RunOutcome::completed);
  EXPECT_EQ(run.records.size(), 8U);
  const auto checkpoints = folder / "run" / "checkpoint";
  EXPECT_TRUE(fs::exists(checkpoints / "step-2" / "manifest.json"));
  EXPECT_FALSE(fs::exists(checkpoints / "step-4"));
  EXPECT_NO_THROW(verify_checkpoint(checkpoints / "step-6"));
  EXPECT_CONTAINS(run.log_text(), "CHECKPOINT NOT SAVED at step 4");
  EXPECT_EQ(saves, (Strings{"saved 2", "failed 4", "saved 6", "saved 8"}));
}

TEST(FullDisk, AtTheLastSaveMakesTheRunFail) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run") + Strings{"checkpoint.interval=100"});
  Trainer& trainer = run.build();
  std::unique_ptr<FileSizeLimit> full;
  trainer.add_callback(std::make_unique<CallAt>([&](Trainer& now) {
    if (now.state.step == 8) full = std::make_unique<FileSizeLimit>(32 << 10);
  }));
  const std::string message = message_of<Error>([&] { trainer.run(); });
  full.reset();
  EXPECT_CONTAINS(message, "step 8");
  EXPECT_TRUE(read_run_history(folder / "run").back().exit_reason.starts_with("failed"));
}

}  // namespace
}  // namespace stepforge::testing
