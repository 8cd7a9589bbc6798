#include "stepforge/step/lane_report.h"

#include <gtest/gtest.h>

namespace stepforge::test {
namespace {

Operation on(Lane lane, std::vector<int> needs = {}) {
  Operation operation;
  operation.lane = lane;
  operation.needs = std::move(needs);
  return operation;
}

TEST(LaneReport, TellsComputingWaitingAndTheExecutorsOwnTimeApart) {
  StepProgram program;
  program.operations = {on(Lane::gather), on(Lane::compute), on(Lane::compute, {0}), on(Lane::reduce, {2}),
                        on(Lane::compute)};
  // The gather lasts 4 s; the compute lane works 1 s, waits 3 s for it, loses 0.5 s, works 2 s and then 1 s.
  const std::vector<OperationTime> times = {{0, 4}, {0, 1}, {4.5, 6.5}, {6.5, 8.5}, {6.5, 7.5}};
  const LaneReport report = lane_report(program, times);
  EXPECT_EQ(report.total, 8.5);
  EXPECT_EQ(report.computing, 4);
  EXPECT_EQ(report.waiting, 3);
  EXPECT_EQ(report.outside, 0.5);
  EXPECT_EQ(report.communicating, 6);
  EXPECT_EQ(report.hidden_share, 0.5);
}

TEST(LaneReport, OfOneRankHidesEverything) {
  StepProgram program;
  program.operations = {on(Lane::compute), on(Lane::compute)};
  const LaneReport report = lane_report(program, {{0, 1}, {1, 2}});
  EXPECT_EQ(report.hidden_share, 1);
  EXPECT_EQ(report.computing, 2);
  EXPECT_EQ(report.outside, 0);
}

}  // namespace
}  // namespace stepforge::test
