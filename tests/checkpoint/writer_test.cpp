// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/writer.h"

#include <csignal>

#include <sys/resource.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "tests/checkpoint/fixture.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// While this object lives, no file can grow beyond `bytes`: writes fail as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

class CheckpointWriterTest : public ::testing::TestWithParam<bool> {
 protected:
  TempFolder folder_;
  RecordedLog log_;
};

TEST_P(CheckpointWriterTest, KeepsTheLatestK) {
  CheckpointWriter writer(folder_ / "checkpoint", 2, log_.logger(), GetParam());
  const SmallModel model(1);
  for (const int64_t step : {8, 9, 10, 11}) writer.save(step, model.stage());
  EXPECT_TRUE(writer.wait());
  EXPECT_EQ(names_in(folder_ / "checkpoint"), (Names{"step-10", "step-11"}));
  EXPECT_CONTAINS(log_.text(), "step-11: ");
  EXPECT_CONTAINS(log_.text(), "GB/s");
}

TEST_P(CheckpointWriterTest, TheStepThatIsToBeKeptStaysUntilAnotherTakesItsPlace) {
  CheckpointWriter writer(folder_.path(), 2, log_.logger(), GetParam());
  const SmallModel model(1);
  writer.save(1, model.stage(), /*keep=*/true);
  for (const int64_t step : {2, 3, 4}) writer.save(step, model.stage());
  writer.wait();
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-1", "step-3", "step-4"}));
  writer.save(5, model.stage(), /*keep=*/true);
  for (const int64_t step : {6, 7, 8}) writer.save(step, model.stage());
  writer.wait();
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-5", "step-7", "step-8"}));
}

TEST_P(CheckpointWriterTest, AStepOfAnEarlierStartIsKept) {
  const SmallModel model(1);
  {
    CheckpointWriter earlier(folder_.path(), 0, log_.logger(), GetParam());
    for (const int64_t step : {1, 2, 3}) earlier.save(step, model.stage());
  }
  CheckpointWriter writer(folder_.path(), 2, log_.logger(), GetParam());
  writer.keep(2);
  for (const int64_t step : {4, 5}) writer.save(step, model.stage());
  writer.wait();
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-2", "step-4", "step-5"}));
}

TEST_P(CheckpointWriterTest, ASaveThatFailsTakesNoPlace) {
  CheckpointWriter writer(folder_.path(), 2, log_.logger(), GetParam());
  const SmallModel model(1);
  writer.save(1, model.stage(), /*keep=*/true);
  writer.wait();
  {
    const FullDisk full(64);
    writer.save(2, model.stage(), /*keep=*/true);
    EXPECT_FALSE(writer.wait());
  }
  for (const int64_t step : {3, 4, 5}) writer.save(step, model.stage());
  writer.wait();
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-1", "step-4", "step-5"}));
}

TEST_P(CheckpointWriterTest, ZeroKeepsAll) {
  CheckpointWriter writer(folder_.path(), 0, log_.logger(), GetParam());
  const SmallModel model(1);
  for (const int64_t step : {1, 2, 3}) writer.save(step, model.stage());
  writer.wait();
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-1", "step-2", "step-3"}));
}

TEST_P(CheckpointWriterTest, AFullDiskIsLoggedDeletesNothingAndTheNextSaveWorks) {
  CheckpointWriter writer(folder_.path(), 1, log_.logger(), GetParam());
  SmallModel model(1);
  writer.save(1, model.stage());
  ASSERT_TRUE(writer.wait());
  model.refill(2);
  for (const rlim_t space : {rlim_t{20000}, rlim_t{2000}}) {  // enough for the header; not even that
    const FullDisk full(space);
    writer.save(2, model.stage());
    EXPECT_FALSE(writer.wait());
  }
  EXPECT_EQ(names_in(folder_.path()), Names{"step-1"});
  EXPECT_NO_THROW(checkpoint_of_step(folder_.path(), 1));
  EXPECT_CONTAINS(log_.text(), " error ");
  EXPECT_CONTAINS(log_.text(), "CHECKPOINT NOT SAVED at step 2: cannot write");
  EXPECT_CONTAINS(log_.text(), "File too large");

  writer.save(3, model.stage());
  EXPECT_TRUE(writer.wait());
  EXPECT_EQ(names_in(folder_.path()), Names{"step-3"});
  SmallModel loaded(7);
  load_checkpoint(folder_ / "step-3", loaded.spec, loaded.store, &loaded.optimizer);
  EXPECT_EQ(loaded.bits(), model.bits());
}

TEST_P(CheckpointWriterTest, ReportsTheOutcomeOfEachSaveOnce) {
  CheckpointWriter writer(folder_.path(), 0, log_.logger(), GetParam());
  const SmallModel model(1);
  EXPECT_TRUE(writer.take_outcomes().empty());
  writer.save(1, model.stage());
  writer.wait();
  {
    const FullDisk full(2000);
    writer.save(2, model.stage());
    writer.wait();
  }
  const auto outcomes = writer.take_outcomes();
  ASSERT_EQ(outcomes.size(), 2U);
  EXPECT_EQ(outcomes[0].step, 1);
  EXPECT_EQ(outcomes[0].failure, "");
  EXPECT_EQ(outcomes[1].step, 2);
  EXPECT_CONTAINS(outcomes[1].failure, "File too large") << outcomes[1].failure;
  EXPECT_TRUE(writer.take_outcomes().empty());
}

TEST_P(CheckpointWriterTest, AnUnwritableFolderIsLoggedAndTheNextSaveWorks) {
  CheckpointWriter writer(folder_ / "checkpoint", 0, log_.logger(), GetParam());
  const SmallModel model(1);
  fs::remove(folder_ / "checkpoint");
  write_text(folder_ / "checkpoint", "a file in the way");
  writer.save(1, model.stage());
  EXPECT_FALSE(writer.wait());
  EXPECT_CONTAINS(log_.text(), "CHECKPOINT NOT SAVED at step 1");
  fs::remove(folder_ / "checkpoint");
  writer.save(2, model.stage());
  EXPECT_TRUE(writer.wait());
  EXPECT_EQ(names_in(folder_ / "checkpoint"), Names{"step-2"});
}

TEST_P(CheckpointWriterTest, DoesNotSeeWeightsChangedAfterStaging) {
  CheckpointWriter writer(folder_.path(), 0, log_.logger(), GetParam());
  SmallModel model(1);
  for (int64_t step = 1; step <= 5; ++step) {
    model.refill(static_cast<uint64_t>(step));
    writer.save(
        step, stage_checkpoint(model.spec, model.store, &model.optimizer, Json::object(), writer.reusable()));
    model.refill(1000);  // while the save is in progress
  }
  writer.wait();
  for (int64_t step = 1; step <= 5; ++step) {
    SmallModel loaded(77);
    load_checkpoint(checkpoint_of_step(folder_.path(), step), loaded.spec, loaded.store, &loaded.optimizer);
    EXPECT_EQ(loaded.bits(), SmallModel(static_cast<uint64_t>(step)).bits());
  }
}

TEST_P(CheckpointWriterTest, TheFirstSaveUsesThePreparedMemory) {
  CheckpointWriter writer(folder_.path(), 0, log_.logger(), GetParam());
  const SmallModel model(1);
  StagedCheckpoint reserved = reserve_checkpoint(model.spec, model.store, &model.optimizer, Json::object());
  const size_t bytes = reserved.memory().size();
  writer.prepare(std::move(reserved));
  // Without the optimizer: new memory would be smaller.
  StagedCheckpoint staged =
      stage_checkpoint(model.spec, model.store, nullptr, Json::object(), writer.reusable());
  EXPECT_EQ(staged.memory().size(), bytes);
  writer.save(1, std::move(staged));
  EXPECT_TRUE(writer.wait());
  EXPECT_NO_THROW(checkpoint_of_step(folder_.path(), 1));
}

TEST(CheckpointWriter, ItsThreadGivesWayToThatOfTraining) {
  const auto niceness = [] { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); };
  if (niceness() > 9) GTEST_SKIP() << "the tests run at the lowest priority already";
  const TempFolder folder;
  Logger logger;
  int of_writer = 0;
  logger.set_terminal_guard([&] { of_writer = niceness(); }, [] {});  // on the thread that logs
  CheckpointWriter writer(folder.path(), 0, logger, /*background=*/true);
  writer.save(1, SmallModel(1).stage());
  EXPECT_TRUE(writer.wait());
  EXPECT_GT(of_writer, niceness());
}

TEST_P(CheckpointWriterTest, TheDestructorWaitsForTheSave) {
  const SmallModel model(1);
  {
    CheckpointWriter(folder_.path(), 0, log_.logger(), GetParam()).save(4, model.stage());
  }
  EXPECT_NO_THROW(checkpoint_of_step(folder_.path(), 4));
}

TEST_P(CheckpointWriterTest, LaterStepsOfAnAbandonedRunAreNeitherCountedNorDeleted) {
  CheckpointWriter writer(folder_.path(), 1, log_.logger(), GetParam());
  const SmallModel model(1);
  write_checkpoint(folder_.path(), 30, model.stage());
  for (const int64_t step : {10, 20}) writer.save(step, model.stage());
  writer.wait();
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-20", "step-30"}));
  EXPECT_CONTAINS(log_.text(), "step-30 is beyond step 10");
  EXPECT_FALSE(contains(log_.text(), "step-30 is beyond step 20"));
}

TEST_P(CheckpointWriterTest, RemovesTheLeftoversOfACrash) {
  fs::create_directories(folder_ / "step-3.stepforge-0123abcd");
  write_text(folder_ / "step-3.stepforge-0123abcd" / "model.safetensors", "half");
  const CheckpointWriter writer(folder_.path(), 0, log_.logger(), GetParam());
  EXPECT_EQ(names_in(folder_.path()), Names{});
  EXPECT_CONTAINS(log_.text(), "removed", "step-3.stepforge-0123abcd");
}

TEST_P(CheckpointWriterTest, KeepsWhatTheUserHasBesideTheCheckpoints) {
  const Names users = {"notes.stepforge-0123abcd", "step-3.tmp", "step-4.tmp", "step-old.tmp"};
  for (const std::string& name : users) {
    fs::create_directories(folder_ / name);
    write_text(folder_ / name / "mine", "x");
  }
  const SmallModel model(1);
  CheckpointWriter writer(folder_.path(), 1, log_.logger(), GetParam());
  for (const int64_t step : {3, 4}) writer.save(step, model.stage());
  writer.wait();
  Names expected = users;
  expected.insert(expected.begin() + 2, "step-4");
  EXPECT_EQ(names_in(folder_.path()), expected);
  for (const std::string& name : users) EXPECT_TRUE(fs::exists(folder_ / name / "mine"));
}

TEST_P(CheckpointWriterTest, AnImpossibleFolderIsRefusedAtOnce) {
  write_text(folder_ / "file", "");
  EXPECT_THROW(CheckpointWriter(folder_ / "file", 0, log_.logger(), GetParam()), Error);
  EXPECT_THROW(CheckpointWriter(folder_ / "file" / "below", 0, log_.logger(), GetParam()), Error);
}

INSTANTIATE_TEST_SUITE_P(ForegroundAndBackground, CheckpointWriterTest, ::testing::Bool());

}  // namespace
}  // namespace stepforge::testing
