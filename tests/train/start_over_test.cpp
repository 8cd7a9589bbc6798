// SPDX-License-Identifier: Apache-2.0
// A run that has saved steps continues from them or does not start: nothing that it saved is replaced or deleted.
#include <algorithm>

#include "tests/support/flip_bit.h"
#include "tests/train/fixture.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// Four steps, the last two saved.
Strings saved_run(const fs::path& run) {
  return trainer_run(run) + Strings{"training.steps=4", "checkpoint.interval=1", "checkpoint.keep_latest_k=2",
                                    "metrics.log_freq=1"};
}

/// Every file of the run but its log and lock, with its content.
std::string content_of(const fs::path& run) {
  std::string all;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(run)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    if (path.extension() == ".txt" || path.extension() == ".lock") continue;
    std::error_code failure;
    const bool has_content = fs::is_regular_file(path, failure);
    all += path.string() + (has_content ? " " + file_hash(path) : std::string()) + "\n";
  }
  return all;
}

class StartOver : public ::testing::Test {
 protected:
  StartOver() { TestRun(args_).run(); }

  fs::path checkpoint(int step) const { return run_ / "checkpoint" / format("step-{}", step); }
  /// The message of a start that must be refused without changing a file.
  template <typename Exception>
  std::string refusal() {
    const std::string before = content_of(run_);
    const std::string message = message_of<Exception>([&] { TestRun(args_).run(); });
    EXPECT_EQ(content_of(run_), before);
    return message;
  }

  TempFolder folder_;
  fs::path run_ = folder_ / "run";
  Strings args_ = saved_run(run_);
};

TEST_F(StartOver, IsRefusedIfAllCheckpointsAreDamagedNamingEach) {
  flip_bit(checkpoint(3) / "model.safetensors");
  fs::remove(checkpoint(4) / "state.json");
  EXPECT_CONTAINS(refusal<UsageError>(), "step-3: model.safetensors: changed", "step-4: state.json: missing",
                  "checkpoint.resume = false");
}

TEST_F(StartOver, IsRefusedIfManifestsAreMissing) {
  fs::remove(checkpoint(3) / "manifest.json");
  fs::remove(checkpoint(4) / "manifest.json");
  EXPECT_CONTAINS(refusal<UsageError>(), "step-3: manifest.json: missing", "step-4: manifest.json: missing");
}

TEST_F(StartOver, IsRefusedIfTheCheckpointsAreGone) {
  fs::rename(run_ / "checkpoint", folder_ / "elsewhere");
  EXPECT_CONTAINS(refusal<UsageError>(), "run.json says that a checkpoint of step 4 was saved", "mounted",
                  "checkpoint.resume = false");
  fs::rename(folder_ / "elsewhere", run_ / "checkpoint");
  EXPECT_NO_THROW(TestRun(args_).run());
}

TEST_F(StartOver, IsRefusedIfTheCheckpointsAreGoneAndTheHistoryIsDamaged) {
  fs::rename(run_ / "checkpoint", folder_ / "elsewhere");
  write_text(run_ / "run.json", "{");
  for (int start = 0; start < 2; ++start) {
    EXPECT_CONTAINS(message_of<UsageError>([&] { TestRun(args_).run(); }),
                    "run.json is missing or was damaged", "metrics of an earlier start");
  }
  EXPECT_FALSE(fs::exists(run_ / "checkpoint"));
  fs::rename(folder_ / "elsewhere", run_ / "checkpoint");
  EXPECT_NO_THROW(TestRun(args_).run());
}

/// As an import makes it.
TEST_F(StartOver, IsRefusedIfOnlyTheWeightsOfStepZeroAreLeft) {
  {
    TestRun other(trainer_run(folder_ / "other") + Strings{"training.steps=4"});
    const Trainer& trainer = other.build();
    write_checkpoint(
        run_ / "checkpoint", 0,
        stage_checkpoint(trainer.job.whole, *trainer.store, nullptr,
                         state_to_json(trainer.state, trainer.config, trainer.job.batch.rows_per_step,
                                       trainer.optimizer->steps())));
  }
  flip_bit(checkpoint(3) / "model.safetensors");
  flip_bit(checkpoint(4) / "model.safetensors");
  EXPECT_CONTAINS(refusal<UsageError>(), "a checkpoint of step 4 was saved",
                  "no usable checkpoint after step 0");
}

TEST_F(StartOver, ACheckpointThatCannotBeReadIsNotTakenForDamaged) {
  fs::rename(checkpoint(4), folder_ / "step-4");
  fs::create_symlink("step-4", checkpoint(4));  // a loop: every access fails
  const std::string message = refusal<Error>();
  EXPECT_CONTAINS(message, "cannot read", checkpoint(4).string());
  EXPECT_EQ(message.find("damaged"), std::string::npos) << message;
}

TEST_F(StartOver, ADamagedCheckpointIsKeptWhenItsStepIsSavedAgain) {
  flip_bit(checkpoint(4) / "model.safetensors");
  const std::string damaged = file_hash(checkpoint(4) / "model.safetensors");
  TestRun again(args_);
  again.run();
  EXPECT_EQ(again.records.front().step, 4);
  EXPECT_NO_THROW(verify_checkpoint(checkpoint(4)));
  const fs::path aside = run_ / "checkpoint" / "step-4.damaged";
  EXPECT_EQ(file_hash(aside / "model.safetensors"), damaged);
  EXPECT_CONTAINS(again.log_text(), "damaged checkpoints are kept as step-4.damaged");
}

TEST_F(StartOver, RanksRefuseTogether) {
  flip_bit(checkpoint(3) / "model.safetensors");
  flip_bit(checkpoint(4) / "optimizer.safetensors");
  RankThreads ranks(2);
  ranks.run([&](int) { return args_ + Strings{"training.global_batch_size=4"}; });
  for (const std::string& failure : ranks.failures) {
    EXPECT_CONTAINS(failure, "step-3: model.safetensors: changed", "step-4: optimizer.safetensors: changed");
  }
}

TEST(StartWithoutCheckpoint, KeepsTheMetricsOfTheEarlierStart) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run") + Strings{"checkpoint.enable=false", "metrics.log_freq=1"};
  TestRun(args).run(3);
  const std::string metrics = read_file(folder / "run" / "metrics.jsonl");
  TestRun(args).run(3);
  EXPECT_EQ(read_file(folder / "run" / "metrics.jsonl.old"), metrics);
  TestRun(args).run(3);
  EXPECT_TRUE(fs::exists(folder / "run" / "metrics.jsonl.old-2"));
}

/// The step after which a restart of the launch "job" continues.
int64_t restarted_at(const Strings& args, int restarts, const std::string& id = "job") {
  TestRun run(args);
  run.trainer().launch = {id, restarts};
  run.build();
  return run.trainer().state.step;
}

/// An attempt of the launch "job" that ends after `last_step`.
void attempt(const Strings& args, int64_t last_step) {
  TestRun run(args);
  run.trainer().launch = {"job", 0};
  run.run(last_step);
}

TEST(RestartedLaunch, ContinuesFromItsLastCheckpointDespiteLoadStep) {
  const TempFolder folder;
  const Strings args = trainer_run(folder / "run") +
                       Strings{"training.steps=9", "checkpoint.interval=2", "checkpoint.keep_latest_k=0"};
  TestRun(args).run(8);
  const Strings from_two = args + Strings{"checkpoint.load_step=2"};
  EXPECT_EQ(restarted_at(from_two, 1), 2) << "its first attempt saved nothing";
  attempt(from_two, 4);
  EXPECT_EQ(restarted_at(from_two, 1), 4);
  EXPECT_EQ(restarted_at(from_two, 0), 2) << "not a restart";
  EXPECT_EQ(restarted_at(from_two, 1, "other"), 2);
  EXPECT_EQ(restarted_at(args, 1), 8);
}

TEST(RestartedLaunch, ContinuesDespiteResumeFalse) {
  const TempFolder folder;
  const Strings args =
      trainer_run(folder / "run") + Strings{"checkpoint.interval=2", "checkpoint.resume=false"};
  attempt(args, 5);
  EXPECT_EQ(restarted_at(args, 1), 5);
  EXPECT_CONTAINS(message_of<UsageError>([&] { restarted_at(args, 0); }), "checkpoint.resume = false");
}

TEST(RestartedLaunch, StartsAnewIfItSavedNothing) {
  const TempFolder folder;
  const Strings args =
      trainer_run(folder / "run") +
      Strings{"checkpoint.save_at_end=false", "checkpoint.interval=100", "checkpoint.resume=false"};
  attempt(args, 3);
  EXPECT_EQ(restarted_at(args, 1), 0);
}

}  // namespace
}  // namespace stepforge::testing
