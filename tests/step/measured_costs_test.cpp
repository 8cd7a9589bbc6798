// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/measured_costs.h"

#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/step/draw.h"
#include "stepforge/step/simulate.h"
#include "tests/step/pipeline.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

StepProgram two_layers() {
  StepProgram program;
  program.blocks.resize(3);
  program.blocks[0].name = "embedding";
  program.blocks[1].name = "layers.0";
  program.blocks[2].name = "layers.1";
  return program;
}

Operation on_block(OpKind kind, int block, double flops) {
  Operation operation = make_operation(kind);
  operation.block = block;
  operation.flops = flops;
  return operation;
}

TEST(MeasuredCosts, LayersTakeTheMedianOfAllLayersPerFlop) {
  MeasuredCosts costs;
  for (const double seconds : {3.0, 1.0, 50.0}) costs.add("forward", "layers.0", 10, seconds);
  EXPECT_DOUBLE_EQ(*costs.seconds(two_layers(), on_block(OpKind::forward, 2, 20)), 6);
  EXPECT_FALSE(costs.seconds(two_layers(), on_block(OpKind::forward, 0, 20)));
}

TEST(MeasuredCosts, WithoutFlopsTheTimeItselfCounts) {
  MeasuredCosts costs;
  costs.add("forward", "embedding", 0, 0.5);
  EXPECT_EQ(*costs.seconds(two_layers(), on_block(OpKind::forward, 0, 0)), 0.5);
}

TEST(MeasuredCosts, HalvesOfABackwardShareItsTimeByFlops) {
  MeasuredCosts costs;
  costs.add("backward", "layers.0", 40, 8);
  EXPECT_DOUBLE_EQ(*costs.seconds(two_layers(), on_block(OpKind::backward_input, 1, 15)), 3);
  EXPECT_DOUBLE_EQ(*costs.seconds(two_layers(), on_block(OpKind::backward_weight, 1, 25)), 5);
  costs.add("backward_weight", "layers.0", 25, 4);
  EXPECT_DOUBLE_EQ(*costs.seconds(two_layers(), on_block(OpKind::backward_weight, 1, 25)), 4);
}

TEST(MeasuredCosts, OperationsWithOtherRanksAreNotMeasured) {
  MeasuredCosts costs;
  costs.add("count_labels", "", 0, 1);
  EXPECT_TRUE(costs.seconds(two_layers(), make_operation(OpKind::count_labels)));
  EXPECT_FALSE(costs.seconds(two_layers(), make_operation(OpKind::count_labels, -1, 0)));
}

TEST(MeasuredCosts, OfATraceGiveItsStepAgain) {
  const TempFolder folder;
  const StepProgram program = pipeline(ScheduleKind::one_f_one_b, 1, 1, 2, 4).front();
  MachineModel machine;
  const std::vector<OperationTime> times = simulate(program, machine);
  write_text(folder / "trace.json", trace_json(program, {{"predicted", times}, {"ran", times}}));
  machine.flops_per_second = machine.memory_bytes_per_second = 1;
  machine.measured = MeasuredCosts::from_trace(folder / "trace.json");
  EXPECT_NEAR(step_seconds(simulate(program, machine)), step_seconds(times), 0.05 * step_seconds(times));
}

TEST(MeasuredCosts, FilesWithoutAMeasuredStepAreRefused) {
  const TempFolder folder;
  const StepProgram program = pipeline(ScheduleKind::one_f_one_b, 1, 1, 1, 4).front();
  const std::vector<OperationTime> times = simulate(program, {});
  write_text(folder / "predicted.json", trace_json(program, {{"predicted", times}}));
  write_text(folder / "other.json", "{}");
  const auto refusal = [&](const char* name) {
    return message_of<FormatError>([&] { MeasuredCosts::from_trace(folder / name); });
  };
  EXPECT_CONTAINS(refusal("predicted.json"), "no measured step", "train --trace");
  EXPECT_CONTAINS(refusal("other.json"), "not a trace of Stepforge");
}

}  // namespace
}  // namespace stepforge::testing
