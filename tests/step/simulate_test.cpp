// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/simulate.h"

#include <gtest/gtest.h>

namespace stepforge::testing {
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

const MachineModel kMachine{.name = "test",
                            .flops_per_second = 10,
                            .memory_bytes_per_second = 100,
                            .seconds_per_operation = 0,
                            .network = {.bytes_per_second = 5}};

/// Rank 0 with a group of two ranks: half of a reduction's message leaves each.
StepProgram program_of(std::vector<Operation> operations) {
  StepProgram program;
  program.groups = {{"fsdp", {0, 1}}};
  program.operations = std::move(operations);
  return program;
}

TEST(Simulate, OperationsOfALaneFollowOneAnother) {
  StepProgram program;
  program.operations = {computation(10), computation(20)};
  const auto times = simulate(program, kMachine);
  EXPECT_DOUBLE_EQ(times[0].end, 1.0);
  EXPECT_DOUBLE_EQ(times[1].start, 1.0);
  EXPECT_DOUBLE_EQ(step_seconds(times), 3.0);
}

TEST(Simulate, LanesOverlapUnlessNeedsOrderThem) {
  StepProgram program = program_of({computation(10), message(20, {0}), computation(10), computation(10)});
  program.operations[3].needs = {1};
  const auto times = simulate(program, kMachine);
  EXPECT_DOUBLE_EQ(times[1].start, 1.0);
  EXPECT_DOUBLE_EQ(times[1].end, 3.0);
  EXPECT_DOUBLE_EQ(times[2].start, 1.0);
  EXPECT_DOUBLE_EQ(times[3].start, 3.0);
}

TEST(Simulate, ExchangesBesideAComputationAddOnlyWhatItDoesNotCover) {
  StepProgram program = program_of({computation(40), computation(10)});
  for (Operation& operation : program.operations) {
    operation.exchanges[0] = {0, 25};  // 5 s, of which 3 s may move beside the computation
    operation.beside = 15;
  }
  const auto times = simulate(program, kMachine);
  EXPECT_DOUBLE_EQ(times[0].end, 4.0 + 2.0);
  EXPECT_DOUBLE_EQ(times[1].end - times[1].start, 3.0 + 2.0);
}

TEST(Simulate, LocalBytesMoveAtTheMemoryRate) {
  StepProgram program;
  program.operations.resize(1);
  program.operations[0].kind = OpKind::update;
  program.operations[0].bytes = 200;
  EXPECT_DOUBLE_EQ(step_seconds(simulate(program, kMachine)), 2.0);
}

Operation on(Lane lane, std::vector<int> needs = {}) {
  Operation operation;
  operation.lane = lane;
  operation.needs = std::move(needs);
  return operation;
}

TEST(LaneReport, SeparatesComputingWaitingAndExecutorOverhead) {
  StepProgram program;
  program.operations = {on(Lane::gather), on(Lane::compute), on(Lane::compute, {0}), on(Lane::reduce, {2}),
                        on(Lane::compute)};
  // The gather takes 4 s. The compute lane runs 1 s, waits 3 s for it, loses 0.5 s, runs 2 s and then 1 s.
  const std::vector<OperationTime> times = {{0, 4}, {0, 1}, {4.5, 6.5}, {6.5, 8.5}, {6.5, 7.5}};
  const LaneReport report = lane_report(program, times);
  EXPECT_EQ(report.total, 8.5);
  EXPECT_EQ(report.computing, 4);
  EXPECT_EQ(report.waiting, 3);
  EXPECT_EQ(report.outside, 0.5);
  EXPECT_EQ(report.communicating, 6);
  EXPECT_EQ(report.hidden_share(), 0.5);
}

TEST(LaneReport, MentionsHiddenTrafficOnlyIfThereIsAny) {
  StepProgram program;
  program.operations = {on(Lane::compute), on(Lane::compute)};
  const LaneReport report = lane_report(program, {{0, 1}, {1, 2}});
  EXPECT_EQ(report.communicating, 0);
  EXPECT_EQ(lane_report_text(report),
            "100.0 % computing, 0.0 % waiting for other lanes, 0.00 % outside operations");
  program.operations[0] = on(Lane::gather);
  program.operations[1] = on(Lane::compute, {0});
  EXPECT_EQ(lane_report_text(lane_report(program, {{0, 1}, {1, 2}})),
            "50.0 % computing, 50.0 % waiting for other lanes, 0.00 % outside operations; 0 % of gathers, "
            "reductions and copies hidden");
}

TEST(MeasuredMachine, HasTheRatesOfTheStep) {
  StepProgram program = program_of({computation(30), message(80, {}), computation(10)});
  Operation update;
  update.kind = OpKind::update;
  update.bytes = 600;
  program.operations.push_back(update);
  const MachineModel machine = measured_machine(program, {{0, 3}, {0, 8}, {3, 4}, {4, 6}}, "step 3");
  EXPECT_EQ(machine.flops_per_second, 10);
  EXPECT_EQ(machine.network.bytes_per_second, 5);
  EXPECT_EQ(machine.memory_bytes_per_second, 300);
  EXPECT_EQ(step_seconds(simulate(program, machine)), 8);
}

TEST(MeasuredMachine, KeepsTheDefaultOfRatesWithoutOperations) {
  StepProgram program;
  program.operations = {computation(30)};
  const MachineModel machine = measured_machine(program, {{0, 3}}, "step 3");
  EXPECT_EQ(machine.network.bytes_per_second, MachineModel{}.network.bytes_per_second);
  EXPECT_EQ(machine.name, "step 3");
}

}  // namespace
}  // namespace stepforge::testing
