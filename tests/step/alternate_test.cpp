// SPDX-License-Identifier: Apache-2.0
// Micro-batches that take turns: one computes while rows of the other pass between ranks.
#include "stepforge/step/alternate.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/schedule/generators.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/simulate.h"
#include "tests/step/expert_model.h"
#include "tests/step/pipeline.h"
#include "tests/step/programs.h"

namespace stepforge::testing {
namespace {

RankOptions spread(int micro_batches, bool overlap) {
  RankOptions options = small_options(micro_batches);
  options.plan.dims = {.dp_shard = 2, .ep = 2};
  options.rank = {0, 2};
  options.pipeline.overlap_exchanges = overlap;
  return options;
}

StepProgram one_stage(int micro_batches, bool overlap) {
  return build_step(expert_model(), spread(micro_batches, overlap));
}

bool is_exchange(const Operation& operation) {
  return operation.lane == Lane::exchange;
}

/// Of the exchanges that a computation waits for, those during which another micro-batch computes, and all.
std::pair<int, int> covered(const StepProgram& program) {
  int found = 0;
  int all = 0;
  for (int i = 0; i < std::ssize(program.operations); ++i) {
    const Operation& exchange = element(program.operations, i);
    if (!is_exchange(exchange)) continue;
    const auto after = program.operations.begin() + i + 1;
    const auto waits = std::find_if(after, program.operations.end(), [&](const Operation& operation) {
      return operation.lane == Lane::compute && std::ranges::count(operation.needs, i) > 0;
    });
    if (waits == program.operations.end()) continue;
    ++all;
    found += std::any_of(after, waits, [&](const Operation& operation) {
      return operation.lane == Lane::compute && operation.block >= 0 &&
             operation.micro_batch != exchange.micro_batch;
    });
  }
  return {found, all};
}

TEST(AlternateExchanges, AnotherMicroBatchComputesDuringEveryExchange) {
  const auto [found, all] = covered(one_stage(2, true));
  EXPECT_EQ(all, 16);  // 4 of each layer and micro-batch
  EXPECT_EQ(found, all);
  EXPECT_EQ(covered(one_stage(2, false)), std::pair(0, 16));
}

TEST(AlternateExchanges, TheLastOfAnOddNumberIsAlone) {
  const auto [found, all] = covered(one_stage(3, true));
  EXPECT_EQ(all, 24);
  EXPECT_EQ(found, 16);
}

/// The computations and exchanges of a micro-batch.
std::vector<std::string> work_of(const StepProgram& program, int micro_batch) {
  std::vector<std::string> texts;
  for (const Operation& operation : program.operations)
    if (operation.micro_batch == micro_batch && (operation.block >= 0 || is_exchange(operation)))
      texts.push_back(operation_text(program, operation));
  return texts;
}

TEST(AlternateExchanges, EachMicroBatchKeepsItsOrder) {
  const StepProgram plain = one_stage(5, false);
  const StepProgram turns = one_stage(5, true);
  for (int m = 0; m < 5; ++m) EXPECT_EQ(work_of(turns, m), work_of(plain, m)) << m;
}

// Contributions to the gradient of a unit are added in the same order, so the bits are the same.
TEST(AlternateExchanges, ABlockSeesMicroBatchesInTheirOrder) {
  const StepProgram program = one_stage(4, true);
  for (int b = 0; b < std::ssize(program.blocks); ++b) {
    for (const OpKind kind : {OpKind::forward, OpKind::backward}) {
      std::vector<int> order;
      for (const Operation& operation : program.operations)
        if (operation.block == b && operation.kind == kind) order.push_back(operation.micro_batch);
      EXPECT_TRUE(std::ranges::is_sorted(order)) << element(program.blocks, b).name;
    }
  }
}

TEST(AlternateExchanges, AStepWaitsLessForASlowNetwork) {
  const MachineModel machine{.name = "test",
                             .flops_per_second = 1e5,
                             .memory_bytes_per_second = 1e9,
                             .seconds_per_operation = 0,
                             .network = {.bytes_per_second = 3e4}};
  const auto waiting = [&](bool overlap) {
    const StepProgram program = one_stage(8, overlap);
    return lane_report(program, simulate(program, machine)).waiting;
  };
  EXPECT_LT(waiting(true), waiting(false) / 2);
}

/// Layers of one stage stay together.
ModelSpec staged_by_layer(int layers, int stages) {
  ModelSpec model = expert_model(layers);
  for (BlockSpec& block : model.blocks)
    block.stage = block.kind == BlockKind::embedding ? 0
                  : block.kind == BlockKind::head    ? stages - 1
                                                     : std::min(block.layer, stages - 1);
  return model;
}

std::vector<StepProgram> pipeline_of_experts(ScheduleKind kind, int ranks, int micro_batches) {
  const Schedule schedule = make_schedule(kind, ranks, kind.stages.min, micro_batches);
  const ModelSpec model = staged_by_layer(schedule.stages() + 1, schedule.stages());
  RankOptions options = spread(micro_batches, true);
  options.plan.dims.pp = ranks;
  options.pipeline.schedule = schedule;
  for (const UnitSpec& unit : model.units) options.plan.units.push_back(unit.name);
  std::vector<StepProgram> programs;
  for (int rank = 0; rank < 2 * ranks; ++rank) {
    const ModelSpec part = part_of(model, schedule, rank / 2);
    programs.push_back(build_step(part, rank_layout(part.units, options.plan, {rank, 2 * ranks}), options));
  }
  return programs;
}

TEST(AlternateExchanges, PipelinesOfAnySizeRunWithoutDeadlock) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (const int ranks : {2, 3, 4}) {
      for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
        EXPECT_NO_THROW(check_programs(pipeline_of_experts(kind, ranks, micro_batches)))
            << kind.name << " " << ranks << " " << micro_batches;
      }
    }
  }
}

TEST(TurnPartner, IsTheForwardAfterABackwardAndItsWeightGradients) {
  using enum ActionKind;
  const std::vector<Action> actions = {{forward, 0, 0},         {forward, 0, 1}, {backward_input, 0, 0},
                                       {backward_weight, 0, 0}, {forward, 0, 2}, {backward, 0, 1},
                                       {backward, 0, 2},        {forward, 0, 3}};
  std::vector<std::size_t> partners;
  for (std::size_t k = 0; k < actions.size(); ++k) partners.push_back(turn_partner(actions, k, true));
  EXPECT_EQ(partners, (std::vector<std::size_t>{0, 1, 4, 3, 4, 5, 7, 7}));
}

TEST(TurnPartner, IsOfTheSameKindWithoutStages) {
  using enum ActionKind;
  const std::vector<Action> actions = {{forward, 0, 0}, {forward, 0, 1}, {backward, 0, 0}, {backward, 0, 1}};
  EXPECT_EQ(turn_partner(actions, 0, false), 1U);
  EXPECT_EQ(turn_partner(actions, 1, false), 1U);
  EXPECT_EQ(turn_partner(actions, 2, false), 3U);
}

}  // namespace
}  // namespace stepforge::testing
