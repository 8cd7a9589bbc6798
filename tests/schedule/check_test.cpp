// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/check.h"

#include <utility>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/schedule/csv.h"
#include "stepforge/schedule/generators.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

std::string check_refusal(const Schedule& schedule) {
  return message_of<UsageError>([&] { check_schedule(schedule); });
}
std::string check_refusal(const std::string& csv) {
  return check_refusal(parse_schedule_csv(csv, "my.csv"));
}

TEST(CheckSchedule, EveryPartOfABackwardIsListedOnce) {
  EXPECT_CONTAINS(check_refusal("0F0,0F0,0B0"), "rank 0, position 1 (0F0)",
                  "rank 0, position 0 (0F0) already did this");
  EXPECT_CONTAINS(check_refusal("0F0,0B0,0I0"), "position 2 (0I0)", "position 1 (0B0) already");
  EXPECT_CONTAINS(check_refusal("0F0,0B0,0W0"), "position 2 (0W0)", "position 1 (0B0) already");
  EXPECT_CONTAINS(check_refusal("0F0,0I0,0B0"), "position 2 (0B0)", "position 1 (0I0) already");
  EXPECT_CONTAINS(check_refusal("0F0,0I0"), "rank 0 has no W after I of stage 0 and micro-batch 0");
  EXPECT_CONTAINS(check_refusal("0F0,0W0"), "rank 0 has no B or I of stage 0");
  EXPECT_CONTAINS(check_refusal("0B0"), "rank 0 has no F of stage 0");
  EXPECT_CONTAINS(check_refusal("0F0,0B0\n1F1,1B1,1F0,1B0"), "rank 0 has no F of stage 0 and micro-batch 1");
}

TEST(CheckSchedule, OrderOnARankIsForwardInputWeight) {
  EXPECT_CONTAINS(check_refusal("0B0,0F0"), "rank 0, position 0 (0B0)",
                  "before rank 0, position 1 (0F0), which it needs");
  EXPECT_CONTAINS(check_refusal("0I0,0F0,0W0"), "position 0 (0I0)", "position 1 (0F0), which it needs");
  EXPECT_CONTAINS(check_refusal("0F0,0W0,0I0"), "position 1 (0W0)", "position 2 (0I0), which it needs");
}

TEST(CheckSchedule, LossIsOfTheLastStageBetweenForwardAndBackward) {
  EXPECT_NO_THROW(check_schedule(parse_schedule_csv("0F0,0F1,0L1,0L0,0B0,0B1", "my.csv")));
  EXPECT_NO_THROW(check_schedule(parse_schedule_csv("0F0,0F1,0L1,0B0,0B1", "my.csv")));
  EXPECT_CONTAINS(check_refusal("0F0,0L0,0B0\n1F0,1B0"), "rank 0, position 1 (0L0)",
                  "only the last stage, 1,");
  EXPECT_CONTAINS(check_refusal("0L0,0F0,0B0"), "position 0 (0L0)", "position 1 (0F0), which it needs");
  EXPECT_CONTAINS(check_refusal("0F0,0B0,0L0"), "position 1 (0B0)", "position 2 (0L0), which it needs");
  EXPECT_CONTAINS(check_refusal("0F0,0I0,0L0,0W0"), "position 1 (0I0)", "position 2 (0L0), which it needs");
  EXPECT_CONTAINS(check_refusal("0F0,0L0,0L0,0B0"), "position 2 (0L0)", "already");
}

TEST(CheckSchedule, ActionsAreOfStagesOfTheirRankAndOfMicroBatchesThatExist) {
  Schedule schedule = make_schedule(ScheduleKind::gpipe, 2, 1, 2);
  std::swap(schedule.actions[0][1], schedule.actions[1][1]);
  EXPECT_CONTAINS(check_refusal(schedule), "rank 0, position 1 (1F1): stage 1 is on rank 1");
  schedule = make_schedule(ScheduleKind::gpipe, 2, 1, 2);
  schedule.actions[1][2].micro_batch = 2;
  EXPECT_CONTAINS(check_refusal(schedule), "rank 1, position 2 (1B2): there are only micro-batches 0 to 1");
  schedule.actions[1][2] = {ActionKind::backward, -1, 0};
  EXPECT_CONTAINS(check_refusal(schedule), "rank 1, position 2 (-1B0): there are only stages 0 to 1");
  schedule.rank_of_stage[1] = 2;
  EXPECT_CONTAINS(check_refusal(schedule), "stage 1 is on rank 2, but there are 2 ranks");
}

TEST(CheckSchedule, NothingIsEmpty) {
  EXPECT_CONTAINS(check_refusal(Schedule{}), "0 ranks, 0 stages");
  Schedule schedule = make_schedule(ScheduleKind::gpipe, 2, 1, 2);
  schedule.actions.emplace_back();
  EXPECT_CONTAINS(check_refusal(schedule), "rank 2 has no action");
  schedule = make_schedule(ScheduleKind::gpipe, 2, 1, 2);
  schedule.actions[0].clear();
  EXPECT_CONTAINS(check_refusal(schedule), "rank 0 has no action");
}

TEST(CheckSchedule, ACycleIsShownActionByAction) {
  // Rank 1 waits for a forward that rank 0 does after a backward that waits for rank 1.
  const std::string message = check_refusal("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1");
  EXPECT_CONTAINS(message, "in a cycle",
                  "rank 0, position 1 (0B0) waits for rank 1, position 2 (1B0), which comes after 1F1",
                  "rank 1, position 0 (1F1) waits for rank 0, position 2 (0F1), which comes after 0B0");
}

TEST(CheckSchedule, ARankCanWaitForItself) {
  EXPECT_CONTAINS(check_refusal("1F0,0F0,1B0,0B0"), "in a cycle",
                  "rank 0, position 0 (1F0) waits for rank 0, position 1 (0F0), which comes after 1F0");
}

TEST(CheckSchedule, OnlyTheActionsOfTheCycleAreShown) {
  // Stages 1 and 2 wait for each other, the others for them.
  const std::string message =
      check_refusal("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F1,2F0,2B0,2B1\n3F0,3F1,3B0,3B1");
  EXPECT_CONTAINS(message, "rank 1, position 1 (1B0)", "rank 2, position 0 (2F1)");
  for (const char* other : {"rank 0,", "rank 3,"})
    EXPECT_EQ(message.find(other), std::string::npos) << message;
}

}  // namespace
}  // namespace stepforge::testing
