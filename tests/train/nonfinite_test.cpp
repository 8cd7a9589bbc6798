// SPDX-License-Identifier: Apache-2.0
// A loss or gradient norm that is not finite never reaches the weights.
#include <cmath>

#include "tests/train/fixture.h"

namespace stepforge::testing {
namespace {

Strings planted(const TempFolder& folder, const std::string& block, const Strings& more = {}) {
  return trainer_run(folder / "run") +
         Strings{"debug.plant_nan_step=3", format("debug.plant_nan_block={}", block)} + more;
}

class PlantedNan : public ::testing::TestWithParam<const char*> {};

TEST_P(PlantedNan, StopsTheRunWithStepAndBlockInTheErrorAndChangesNoBit) {
  const TempFolder folder;
  TestRun run(planted(folder, GetParam()));
  const std::string message = message_of<Error>([&] { run.run(); });
  EXPECT_CONTAINS(message, "step 3");
  EXPECT_CONTAINS(message, format("block {} (", GetParam()));
  ASSERT_EQ(run.records.size(), 2U);
  EXPECT_EQ(bits_of(run.trainer()), run.records.back().bits);
  const auto history = read_run_history(folder / "run");
  EXPECT_TRUE(history.back().exit_reason.starts_with("failed: step 3"));
  EXPECT_EQ(history.back().end_step, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "run" / "checkpoint" / "step-3"));
}

TEST_P(PlantedNan, IsSkippedWithoutChangingABitAndTheRunContinues) {
  const TempFolder folder;
  TestRun run(planted(folder, GetParam(), {"training.nonfinite=skip"}));
  run.run();
  ASSERT_EQ(run.records.size(), 8U);
  EXPECT_EQ(run.records[2].bits, run.records[1].bits);
  EXPECT_NE(run.records[3].bits, run.records[2].bits);
  EXPECT_EQ(run.trainer().state.skipped, 1);
  EXPECT_EQ(run.trainer().optimizer->steps(), 7);
  EXPECT_TRUE(std::isfinite(run.records.back().loss));
  const std::string log = run.log_text();
  EXPECT_CONTAINS(log, "step 3: ");
  EXPECT_CONTAINS(log, format("first not finite in block {} (", GetParam()));
  EXPECT_CONTAINS(log, "the step is skipped (1 of at most 10)");
}

INSTANTIATE_TEST_SUITE_P(Blocks, PlantedNan, ::testing::Values("embedding", "layers.0", "layers.1", "head"),
                         [](const ::testing::TestParamInfo<const char*>& block) {
                           std::string name = block.param;
                           std::erase(name, '.');
                           return name;
                         });

TEST(Nonfinite, IsReportedAsOutputInForwardAndAsGradientInTheHead) {
  const TempFolder folder;
  TestRun forward(planted(folder, "layers.1"));
  EXPECT_CONTAINS(message_of<Error>([&] { forward.run(); }), "layers.1 (output)");
  TestRun backward(planted(folder, "head", {format("run_dir={}", (folder / "other").string())}));
  const std::string message = message_of<Error>([&] { backward.run(); });
  EXPECT_CONTAINS(message, "head (gradient of its input)");
  EXPECT_CONTAINS(message, "gradient norm nan");
}

TEST(Nonfinite, SkippedStepsAreLimited) {
  const TempFolder folder;
  TestRun run(planted(folder, "layers.0", {"training.nonfinite=skip", "training.max_skipped=0"}));
  const std::string message = message_of<Error>([&] { run.run(); });
  EXPECT_CONTAINS(message, "training.max_skipped = 0");
  EXPECT_CONTAINS(message, "layers.0");
  EXPECT_EQ(bits_of(run.trainer()), run.records.back().bits);
}

TEST(Nonfinite, SkippedStepsAreCountedAcrossResumes) {
  const TempFolder folder;
  const Strings args = planted(folder, "layers.0", {"training.nonfinite=skip", "training.max_skipped=1"});
  TestRun(args).run(4);
  TestRun resumed(args + Strings{"debug.plant_nan_step=6"});
  const std::string message = message_of<Error>([&] { resumed.run(); });
  EXPECT_CONTAINS(message, "more than training.max_skipped = 1");
}

TEST(Nonfinite, LossIsWrittenAsNanAndLeftOutOfTheSmoothedLoss) {
  const TempFolder folder;
  TestRun run(planted(folder, "layers.0", {"training.nonfinite=skip"}));
  run.run();
  const auto records = read_jsonl(folder / "run" / "metrics.jsonl");
  ASSERT_EQ(records.size(), 8U);
  EXPECT_TRUE(std::isnan(*records[2].find(metric::loss)));
  EXPECT_TRUE(std::isfinite(run.trainer().state.smoothed_loss.sum));
}

TEST(Nonfinite, IsFoundInBf16Too) {
  const TempFolder folder;
  TestRun run(planted(folder, "layers.1", {"precision.compute=bf16"}));
  EXPECT_CONTAINS(message_of<Error>([&] { run.run(); }), "block layers.1 (output)");
}

TEST(Nonfinite, WeightsAreCheckedFirst) {
  const TempFolder folder;
  TestRun run(trainer_run(folder / "run"));
  Trainer& trainer = run.build();
  const UnitStore& unit = trainer.store->unit(1);
  unit.master_view(1).data_ptr<float>()[0] = NAN;
  EXPECT_CONTAINS(message_of<Error>([&] { trainer.run(); }),
                  format("the weights of {}", unit.spec().parameters[1].name));
}

TEST(PlantNan, InAnUnknownBlockIsAnErrorThatListsTheBlocks) {
  const TempFolder folder;
  TestRun run(planted(folder, "layers.7"));
  const std::string message = message_of<UsageError>([&] { run.build(); });
  EXPECT_CONTAINS(message, "layers.7");
  EXPECT_CONTAINS(message, "embedding, layers.0, layers.1, head");
}

}  // namespace
}  // namespace stepforge::testing
