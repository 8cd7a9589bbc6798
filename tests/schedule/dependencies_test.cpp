// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/dependencies.h"

#include <gtest/gtest.h>

#include "stepforge/schedule/csv.h"
#include "tests/schedule/kinds.h"

namespace stepforge::testing {
namespace {

TEST(Dependencies, ForwardsNeedTheStageBeforeAndInputGradientsTheStageAfter) {
  const Schedule schedule = parse_schedule_csv("0F0,0I0,0W0\n1F0,1L0,1B0", "my.csv");
  const ActionTable table(schedule);
  EXPECT_EQ(table.need({ActionKind::forward, 0, 0}), std::nullopt);
  EXPECT_EQ(table.need({ActionKind::forward, 1, 0}), (ActionPlace{0, 0}));
  EXPECT_EQ(table.need({ActionKind::loss, 1, 0}), (ActionPlace{1, 0}));
  EXPECT_EQ(table.need({ActionKind::backward, 1, 0}), (ActionPlace{1, 1}));
  EXPECT_EQ(table.need({ActionKind::backward_input, 0, 0}), (ActionPlace{1, 2}));
  EXPECT_EQ(table.need({ActionKind::backward_weight, 0, 0}), (ActionPlace{0, 1}));
}

TEST(Dependencies, WithoutALossTheLastBackwardNeedsItsForward) {
  const Schedule schedule = parse_schedule_csv("0F0,0B0", "my.csv");
  EXPECT_EQ(ActionTable(schedule).need({ActionKind::backward, 0, 0}), (ActionPlace{0, 0}));
}

TEST(Dependencies, ABackwardMakesBothGradients) {
  const Schedule schedule = parse_schedule_csv("0F0,0B0", "my.csv");
  const ActionTable table(schedule);
  EXPECT_EQ(table.find(ActionTable::Product::input_gradient, 0, 0), (ActionPlace{0, 1}));
  EXPECT_EQ(table.find(ActionTable::Product::weight_gradient, 0, 0), (ActionPlace{0, 1}));
  EXPECT_EQ(table.find(ActionTable::Product::loss, 0, 0), std::nullopt);
}

TEST(Dependencies, TheRunOrderHasEachActionAfterWhatItNeeds) {
  for (const ScheduleKind& kind : all_kinds()) {
    const Schedule schedule = make_schedule(kind, 3, stage_numbers(kind).back(), 7);
    const ActionTable table(schedule);
    std::vector<int> done(3, 0);
    std::size_t actions = 0;
    for (const ActionPlace& place : run_order(schedule, table)) {
      const auto rank = static_cast<std::size_t>(place.rank);
      ASSERT_EQ(place.position, done[rank]++);
      const auto need = table.need(schedule.actions[rank][static_cast<std::size_t>(place.position)]);
      if (need) {
        ASSERT_LT(need->position, done[static_cast<std::size_t>(need->rank)]);
      }
      ++actions;
    }
    EXPECT_EQ(actions, schedule.actions[0].size() + schedule.actions[1].size() + schedule.actions[2].size());
  }
}

TEST(Dependencies, TheRunOrderEndsBeforeACycle) {
  const Schedule schedule = parse_schedule_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "my.csv");
  // 0B0 waits for 1B0, which comes after 1F1, which waits for 0F1.
  EXPECT_EQ(run_order(schedule, ActionTable(schedule)), (std::vector<ActionPlace>{{0, 0}, {1, 0}}));
}

}  // namespace
}  // namespace stepforge::testing
