// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/lr_schedule.h"

#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/config/config_section.h"

namespace stepforge::testing {
namespace {

LrSchedulerConfig scheduler(int64_t warmup, double ratio = -1.0, const std::string& type = "linear",
                            double minimum = 0.0) {
  LrSchedulerConfig config;
  config.warmup_steps = warmup;
  config.decay_ratio = ratio;
  config.decay_type = type;
  config.min_lr_factor = minimum;
  return config;
}

void expect_factors(const LrSchedulerConfig& config, int64_t steps, const std::vector<double>& expected) {
  const LearningRateSchedule schedule(config, steps);
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(schedule.factor(static_cast<int64_t>(step)), expected[step], 1e-12) << "step " << step;
  }
}

TEST(Schedule, WarmUpThenLinearDecayToTheEnd) {
  expect_factors(scheduler(2), 10, {0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125});
}

TEST(Schedule, TheRateIsFlatBeforeTheDecayRatio) {
  expect_factors(scheduler(2, 0.5), 10, {0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2});
}

TEST(Schedule, WithoutDecayTheRateIsConstant) {
  expect_factors(scheduler(2, 0.0), 10, {0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0});
}

TEST(Schedule, DecayEndsTowardsTheMinimum) {
  expect_factors(scheduler(2, -1.0, "linear", 0.2), 10, {0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3});
}

TEST(Schedule, CosineAndSquareRootFollowTheirFormulas) {
  std::vector<double> cosine = {0.5, 1.0, 1.0};
  std::vector<double> root = {0.5, 1.0, 1.0};
  for (int i = 1; i <= 7; ++i) {
    cosine.push_back(0.1 + 0.9 * 0.5 * (1.0 + std::cos(std::numbers::pi * i / 8.0)));
    root.push_back(0.1 + 0.9 * (1.0 - std::sqrt(i / 8.0)));
  }
  expect_factors(scheduler(2, -1.0, "cosine", 0.1), 10, cosine);
  expect_factors(scheduler(2, -1.0, "sqrt", 0.1), 10, root);
}

TEST(Schedule, OtherDecaysFollowTheirFormulas) {
  std::vector<double> polynomial = {0.5, 1.0, 1.0};
  std::vector<double> inverse = {0.5, 1.0, 1.0};
  std::vector<double> restarts = {0.5, 1.0, 1.0};
  for (int i = 1; i <= 7; ++i) {
    polynomial.push_back(std::pow(1.0 - i / 8.0, 3));
    inverse.push_back(std::sqrt(2.0 / (2.0 + i)));
    restarts.push_back(0.5 * (1.0 + std::cos(std::numbers::pi * std::fmod(2 * i / 8.0, 1.0))));
  }
  LrSchedulerConfig config = scheduler(2, -1.0, "polynomial");
  config.power = 3;
  expect_factors(config, 10, polynomial);
  expect_factors(scheduler(2, -1.0, "inverse_sqrt"), 10, inverse);
  EXPECT_NEAR(LearningRateSchedule(scheduler(0, -1.0, "inverse_sqrt"), 10).factor(5),
              std::sqrt(10000.0 / 10005.0), 1e-12);
  config = scheduler(2, -1.0, "cosine");
  config.cycles = 2;
  expect_factors(config, 10, restarts);
  EXPECT_EQ(restarts[6], 1.0);  // the second cycle begins at the peak
  expect_factors(scheduler(2, -1.0, "constant", 0.1), 10, {0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0});
}

TEST(Schedule, AfterItsEndTheRateIsThatOfTheEndOfTheDecay) {
  for (const char* type : {"linear", "sqrt", "cosine", "polynomial"}) {
    for (const double minimum : {0.0, 0.1}) {
      const LearningRateSchedule schedule(scheduler(2, 0.5, type, minimum), 10);
      EXPECT_GT(schedule.factor(9), minimum) << type;
      for (const int64_t step : {10, 11, 1000}) EXPECT_NEAR(schedule.factor(step), minimum, 1e-12) << type;
    }
  }
  EXPECT_EQ(LearningRateSchedule(scheduler(2, 0.0), 10).factor(20), 1.0);
  EXPECT_EQ(LearningRateSchedule(scheduler(20), 10).factor(20), 1.0) << "a warm-up without a decay";
  EXPECT_NEAR(LearningRateSchedule(scheduler(2, -1.0, "inverse_sqrt"), 10).factor(20), std::sqrt(2.0 / 10.0),
              1e-12);
}

TEST(Schedule, TheConfigurationNamesTheBuiltInDecays) {
  const auto& choices = config_schema().find("lr_scheduler")->table->find("decay_type")->rules.choices;
  ASSERT_EQ(choices.size(), builtin_decays().size());
  for (size_t i = 0; i < choices.size(); ++i) EXPECT_EQ(choices[i], builtin_decays()[i].name);
}

TEST(Schedule, ADecayOfAPluginIsUsedByItsName) {
  auto registry = std::make_shared<Registry>();
  registry->add(DecayKind{.name = "halves", .factor = [](const DecayStep& step) {
                            return std::pow(0.5, static_cast<double>(step.k));
                          }});
  const LearningRateSchedule schedule(scheduler(1, -1.0, "halves", 0.5), 4,
                                      Extensions(make_config_shape(registry)));
  EXPECT_EQ(schedule.factor(0), 1.0);
  EXPECT_EQ(schedule.factor(1), 0.5 + 0.5 * 1.0);
  EXPECT_EQ(schedule.factor(2), 0.5 + 0.5 * 0.5);
  EXPECT_THROW(LearningRateSchedule(scheduler(1, -1.0, "halves"), 4), UsageError);
}

TEST(Schedule, AWarmUpRatioReplacesTheSteps) {
  LrSchedulerConfig config = scheduler(7);
  config.warmup_ratio = 0.2;
  expect_factors(config, 10, {0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125});
  EXPECT_EQ(LearningRateSchedule(config, 10).warmup_steps(), 2);
}

TEST(Schedule, AWarmUpLongerThanTheRunIsShortened) {
  expect_factors(scheduler(20), 5, {0.2, 0.4, 0.6, 0.8, 1.0});
}

TEST(Schedule, ADecayLongerThanTheRestOfTheRunIsShortened) {
  const LearningRateSchedule schedule(scheduler(6, 0.8), 10);
  EXPECT_TRUE(schedule.decay_was_cut());
  expect_factors(scheduler(6, 0.8), 10, {1 / 6., 2 / 6., 3 / 6., 4 / 6., 5 / 6., 1.0, 1.0, 0.75, 0.5, 0.25});
  EXPECT_FALSE(LearningRateSchedule(scheduler(2, 0.8), 10).decay_was_cut());
}

TEST(Schedule, WithoutWarmUpTheFirstStepHasTheFullRate) {
  expect_factors(scheduler(0), 4, {1.0, 0.75, 0.5, 0.25});
}

TEST(Schedule, TotalStepsOverrideTheRunAndTheEndStays) {
  LrSchedulerConfig config = scheduler(2);
  config.total_steps = 10;
  expect_factors(config, 1000, {0.5, 1.0, 1.0, 0.875});
  EXPECT_DOUBLE_EQ(LearningRateSchedule(config, 1000).factor(9), 0.125);
  EXPECT_DOUBLE_EQ(LearningRateSchedule(config, 1000).factor(500), 0.0);
}

}  // namespace
}  // namespace stepforge::testing
