#include "stepforge/step/simulate.h"

#include <gtest/gtest.h>

namespace stepforge::test {
namespace {

Operation computation(double flops) {
  Operation operation;
  operation.flops = flops;
  return operation;
}

Operation message(int64_t bytes, std::vector<int> needs) {
  Operation operation;
  operation.kind = OpKind::reduce_start;
  operation.lane = Lane::reduce;
  operation.group = 0;
  operation.bytes = bytes;
  operation.needs = std::move(needs);
  return operation;
}

const MachineModel kMachine{.flops_per_second = 10,
                            .memory_bytes_per_second = 100,
                            .network_bytes_per_second = 5,
                            .seconds_per_operation = 0};

TEST(Simulate, OperationsOfALaneFollowOneAnother) {
  StepProgram program;
  program.operations = {computation(10), computation(20)};
  const auto times = simulate(program, kMachine);
  EXPECT_DOUBLE_EQ(times[0].end, 1.0);
  EXPECT_DOUBLE_EQ(times[1].start, 1.0);
  EXPECT_DOUBLE_EQ(step_seconds(times), 3.0);
}

TEST(Simulate, LanesOverlapExceptWhereANeedTiesThem) {
  StepProgram program;
  program.operations = {computation(10), message(10, {0}), computation(10), computation(10)};
  program.operations[3].needs = {1};
  const auto times = simulate(program, kMachine);
  EXPECT_DOUBLE_EQ(times[1].start, 1.0);
  EXPECT_DOUBLE_EQ(times[1].end, 3.0);
  EXPECT_DOUBLE_EQ(times[2].start, 1.0);
  EXPECT_DOUBLE_EQ(times[3].start, 3.0);
}

TEST(Simulate, BytesWithoutAPartnerMoveAtTheMemorysRate) {
  StepProgram program;
  program.operations.resize(1);
  program.operations[0].kind = OpKind::update;
  program.operations[0].bytes = 200;
  EXPECT_DOUBLE_EQ(step_seconds(simulate(program, kMachine)), 2.0);
}

}  // namespace
}  // namespace stepforge::test
