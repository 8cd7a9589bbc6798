// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/generators.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/schedule/action_text.h"
#include "stepforge/schedule/check.h"
#include "tests/schedule/kinds.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// "0F0 0F1 0B0"
std::string order(const Schedule& schedule, int rank) {
  std::vector<std::string> texts;
  for (const Action& action : schedule.actions.at(static_cast<std::size_t>(rank)))
    texts.push_back(action_text(action));
  return join(texts, " ");
}

TEST(Generators, EveryKindCanRunWithAnyNumberOfRanksStagesAndMicroBatches) {
  for (const ScheduleKind& kind : all_kinds()) {
    for (const int stages : stage_numbers(kind)) {
      for (int ranks = 1; ranks <= 8; ++ranks) {
        for (int micro_batches = 1; micro_batches <= 2 * ranks + 7; ++micro_batches) {
          const Schedule schedule = make_schedule(kind, ranks, stages, micro_batches);
          ASSERT_NO_THROW(check_schedule(schedule)) << kind.name << ", " << ranks << " ranks, " << stages
                                                    << " stages each, " << micro_batches << " micro-batches";
          ASSERT_EQ(schedule.stages(), ranks * stages);
        }
      }
    }
  }
}

TEST(Generators, AnUnevenLastRoundCanRun) {
  for (const ScheduleKind& kind : {ScheduleKind::interleaved_1f1b, ScheduleKind::interleaved_zero_bubble}) {
    for (const int micro_batches : {17, 29, 31, 61, 64, 127})
      ASSERT_NO_THROW(check_schedule(make_schedule(kind, 16, 3, micro_batches))) << micro_batches;
  }
}

// Those of Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble and DualPipeV are PyTorch's too (2.11).
TEST(Generators, OrdersAreThePublishedOnes) {
  const Schedule gpipe = make_schedule(ScheduleKind::gpipe, 2, 1, 3);
  EXPECT_EQ(order(gpipe, 0), "0F0 0F1 0F2 0B0 0B1 0B2");
  const Schedule one_f_one_b = make_schedule(ScheduleKind::one_f_one_b, 3, 1, 4);
  EXPECT_EQ(order(one_f_one_b, 0), "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
  EXPECT_EQ(order(one_f_one_b, 2), "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3");
  const Schedule bfs = make_schedule(ScheduleKind::looped_bfs, 2, 2, 2);
  EXPECT_EQ(order(bfs, 1), "1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0");
  const Schedule interleaved = make_schedule(ScheduleKind::interleaved_1f1b, 2, 2, 4);
  EXPECT_EQ(order(interleaved, 0), "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
  EXPECT_EQ(order(interleaved, 1), "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3");
  const Schedule zero_bubble = make_schedule(ScheduleKind::interleaved_zero_bubble, 2, 2, 4);
  EXPECT_EQ(
      order(zero_bubble, 0),
      "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3");
  EXPECT_EQ(
      order(zero_bubble, 1),
      "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3");
  const Schedule zbv = make_schedule(ScheduleKind::zbv_zero_bubble, 2, 2, 4);
  EXPECT_EQ(
      order(zbv, 0),
      "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3");
  EXPECT_EQ(
      order(zbv, 1),
      "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3");
  const Schedule dual = make_schedule(ScheduleKind::dual_pipe_v, 2, 2, 4);
  EXPECT_EQ(order(dual, 0), "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3");
  EXPECT_EQ(order(dual, 1), "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3");
}

TEST(Generators, StagesLoopOverTheRanksOrGoToTheLastAndBack) {
  EXPECT_EQ(make_schedule(ScheduleKind::interleaved_1f1b, 3, 2, 1).rank_of_stage,
            (std::vector<int>{0, 1, 2, 0, 1, 2}));
  for (const ScheduleKind& kind : {ScheduleKind::zbv_zero_bubble, ScheduleKind::dual_pipe_v})
    EXPECT_EQ(make_schedule(kind, 3, 2, 1).rank_of_stage, (std::vector<int>{0, 1, 2, 2, 1, 0}));
}

TEST(Generators, NamesAreReadInAnyCase) {
  for (const ScheduleKind& kind : all_kinds()) EXPECT_EQ(find_schedule(kind.name).name, kind.name);
  EXPECT_EQ(find_schedule("zbvzerobubble").name, "ZBVZeroBubble");
  EXPECT_CONTAINS(message_of<UsageError>([] { find_schedule("2F2B"); }), "\"2F2B\"", "GPipe, 1F1B", "CSV");
}

TEST(Generators, WrongNumbersAreRefusedWithTheRemedy) {
  const auto message = [](ScheduleKind kind, int ranks, int stages, int micro_batches) {
    return message_of<UsageError>([&] { make_schedule(kind, ranks, stages, micro_batches); });
  };
  EXPECT_CONTAINS(message(ScheduleKind::one_f_one_b, 2, 3, 4), "1F1B needs 1 stage per rank, not 3",
                  "change the split");
  EXPECT_CONTAINS(message(ScheduleKind::zbv_zero_bubble, 2, 3, 4), "needs 2 stages per rank, not 3");
  EXPECT_CONTAINS(message(ScheduleKind::interleaved_1f1b, 2, 1, 4), "at least 2 stages per rank, not 1",
                  "more stages");
  EXPECT_CONTAINS(message(ScheduleKind::gpipe, 0, 1, 4), "GPipe: 0 pipeline ranks");
  EXPECT_CONTAINS(message(ScheduleKind::gpipe, 2, 1, 0), "0 micro-batches");
}

}  // namespace
}  // namespace stepforge::testing
