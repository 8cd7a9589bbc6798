// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/csv.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/staged.h"
#include "stepforge/schedule/check.h"
#include "tests/schedule/kinds.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

std::string csv_refusal(const std::string& text) {
  return message_of<FormatError>([&] { parse_schedule_csv(text, "my.csv"); });
}

TEST(ScheduleCsv, EveryScheduleIsReadBackAsWritten) {
  const TempFolder folder;
  for (const ScheduleKind& kind : all_kinds()) {
    for (const int stages : stage_numbers(kind)) {
      const Schedule schedule = make_schedule(kind, 4, stages, 9);
      write_file_atomic(folder.path() / "schedule.csv", schedule_csv(schedule));
      const Schedule read = read_schedule_csv(folder.path() / "schedule.csv");
      EXPECT_EQ(read.actions, schedule.actions) << kind.name;
      EXPECT_EQ(read.rank_of_stage, schedule.rank_of_stage);
      EXPECT_EQ(read.micro_batches, schedule.micro_batches);
    }
  }
}

TEST(ScheduleCsv, LinesAreRanksAndCellsAreActions) {
  EXPECT_EQ(schedule_csv(make_schedule(ScheduleKind::one_f_one_b, 2, 1, 2)),
            "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const Schedule read = parse_schedule_csv("1F0,1L0,1I0,1W0\n0F0,0B0", "my.csv");
  EXPECT_EQ(read.rank_of_stage, (std::vector<int>{1, 0}));
  EXPECT_EQ(read.actions[0], (std::vector<Action>{{ActionKind::forward, 1, 0},
                                                  {ActionKind::loss, 1, 0},
                                                  {ActionKind::backward_input, 1, 0},
                                                  {ActionKind::backward_weight, 1, 0}}));
  EXPECT_EQ(read.actions[1],
            (std::vector<Action>{{ActionKind::forward, 0, 0}, {ActionKind::backward, 0, 0}}));
}

TEST(ScheduleCsv, BubblesSpacesAndEmptyLinesAreIgnored) {
  const Schedule read = parse_schedule_csv("\r\n 0F0 ,,0B0,\r\n,1F0, 1B0\r\n\n", "my.csv");
  EXPECT_EQ(schedule_csv(read), "0F0,0B0\n1F0,1B0\n");
}

TEST(ScheduleCsv, PartsOfAnOverlapAreReadInOrder) {
  const Schedule read =
      parse_schedule_csv("0F0,1F0,0F1,1F1,(0F2;1B0)OVERLAP_F_B,(1F2; 0B0)OVERLAP_F_B", "my.csv");
  EXPECT_EQ(schedule_csv(read), "0F0,1F0,0F1,1F1,0F2,1B0,1F2,0B0\n");
}

TEST(ScheduleCsv, CommunicationOfPyTorchsLoweredFormIsIgnored) {
  const Schedule read = parse_schedule_csv(
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0", "my.csv");
  EXPECT_EQ(schedule_csv(read), "0F0,0B0\n1F0,1B0\n");
}

TEST(ScheduleCsv, FaultsAreNamedByLineAndColumn) {
  EXPECT_CONTAINS(csv_refusal("0F0,0B0\n1F0, 1X0"), "my.csv:2:6: \"1X0\" is not an action", "2F3");
  for (const char* cell : {"F0", "0F", "-1F0", "0F-1", "0F0x", "0FF0", "0f0", "0 F0", "0F1048576",
                           "99999999999F0", "0SEND_F0x", "0SEND_C0"})
    EXPECT_CONTAINS(csv_refusal(cell), "my.csv:1:1: ", cell, "is not an action");
  EXPECT_CONTAINS(csv_refusal("0F0,(0B0;1F0"), "my.csv:1:5: ", "OVERLAP_F_B");
  EXPECT_CONTAINS(csv_refusal("0F0,(0B0;1F0)OVERLAP"), "my.csv:1:5: ", "OVERLAP_F_B");
  EXPECT_CONTAINS(csv_refusal("0F0,(0B0;1X0)OVERLAP_F_B"), "my.csv:1:10: ", "1X0");
  EXPECT_CONTAINS(csv_refusal("0F0,0B0\n1F0,0F1"), "my.csv:2:5: stage 0 is on rank 0 already");
  EXPECT_CONTAINS(csv_refusal("0F0,0B0\n2F0,2B0"), "my.csv: no line lists stage 1, but there is a stage 2");
  EXPECT_CONTAINS(csv_refusal("0F0,0B0\n,0SEND_F0,"), "my.csv:2:1: ", "lists no computation");
  EXPECT_CONTAINS(csv_refusal("\n"), "my.csv: there are no actions");
}

TEST(ScheduleCsv, TooManyActionsAreRefused) {
  std::string text;
  for (int i = 0; i <= kMaxCsvActions; ++i) text += "0F0,";
  EXPECT_CONTAINS(csv_refusal(text), "my.csv:1:4194305: more than 1048576 actions");
}

TEST(ScheduleCsv, LargeNumbersInASmallFileAreRefusedByTheCheck) {
  const Schedule schedule = parse_schedule_csv("0F1048575", "my.csv");
  EXPECT_CONTAINS(message_of<UsageError>([&] { check_schedule(schedule); }),
                  "1 actions are too few for 1 stages and 1048576 micro-batches");
}

}  // namespace
}  // namespace stepforge::testing
