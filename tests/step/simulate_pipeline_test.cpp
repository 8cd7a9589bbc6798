// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/simulate_pipeline.h"

#include <set>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/step/run_timeline.h"
#include "tests/schedule/kinds.h"
#include "tests/step/pipeline.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

const MachineModel kRates{.name = "test",
                          .flops_per_second = 1,
                          .memory_bytes_per_second = 100,
                          .seconds_per_operation = 0,
                          .network = {.bytes_per_second = 5}};

Operation work(double seconds, std::vector<int> needs = {}) {
  Operation operation;
  operation.flops = seconds;
  operation.needs = std::move(needs);
  return operation;
}

Operation transfer(OpKind kind, int peer, double seconds, std::vector<int> needs = {}) {
  Operation operation = make_operation(kind);
  operation.peer = peer;
  operation.bytes = static_cast<int64_t>(seconds * kRates.network.bytes_per_second);
  operation.needs = std::move(needs);
  return operation;
}

std::vector<StepProgram> programs_of(const std::vector<std::vector<Operation>>& operations) {
  std::vector<StepProgram> programs(operations.size());
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    programs[rank].rank = static_cast<int>(rank);
    programs[rank].operations = operations[rank];
  }
  return programs;
}

void expect_span(const OperationTime& time, double start, double end) {
  EXPECT_DOUBLE_EQ(time.start, start);
  EXPECT_DOUBLE_EQ(time.end, end);
}

/// Programs whose stages take 1 s forward, 1 s for gradients of inputs and 1 s for those of weights; nothing else
/// takes time.
std::vector<StepProgram> uniform_programs(ScheduleKind kind, int ranks, int stages_per_rank,
                                          int micro_batches) {
  std::vector<StepProgram> programs =
      pipeline(kind, ranks, stages_per_rank, micro_batches, 3 * ranks * stages_per_rank);
  for (StepProgram& program : programs) {
    std::set<std::tuple<int, int, OpKind>> seen;  // the first block of a stage takes the time of all
    for (Operation& operation : program.operations) {
      operation.flops = 0;
      operation.bytes = 0;
      if (operation.block < 0 || operation.peer >= 0) continue;
      const int stage = element(program.blocks, operation.block).stage;
      const bool split =
          operation.kind == OpKind::backward_input || operation.kind == OpKind::backward_weight;
      if (operation.kind == OpKind::loss_forward_backward) continue;
      if (operation.kind == OpKind::backward &&
          seen.contains({stage, operation.micro_batch, OpKind::backward_weight}))
        continue;
      if (seen.emplace(stage, operation.micro_batch, operation.kind).second)
        operation.flops = operation.kind == OpKind::forward || split ? 1 : 2;
    }
  }
  return programs;
}

TEST(SimulatePipeline, AMessagePassesWhenBothEndsHaveCome) {
  const auto late_receiver = programs_of(
      {{work(1), transfer(OpKind::send, 1, 2, {0}), transfer(OpKind::send, 1, 2)},
       {work(4), transfer(OpKind::receive, 0, 2, {0}), work(1, {1}), transfer(OpKind::receive, 0, 2)}});
  const PipelineRun run = simulate_pipeline(late_receiver, kRates);
  expect_span(run.times[0][1], 4, 6);
  expect_span(run.times[1][1], 4, 6);
  expect_span(run.times[1][2], 6, 7);
  expect_span(run.times[0][2], 6, 8);
  EXPECT_DOUBLE_EQ(run.seconds(), 8);
  const auto late_sender = programs_of(
      {{work(3), transfer(OpKind::send, 1, 2, {0})}, {transfer(OpKind::receive, 0, 2), work(1, {0})}});
  expect_span(simulate_pipeline(late_sender, kRates).times[1][0], 3, 5);
}

TEST(SimulatePipeline, ACollectiveStartsWithTheLastOfItsRanks) {
  auto programs = programs_of({{work(1), make_operation(OpKind::share_loss, -1, 0)},
                               {work(3), make_operation(OpKind::share_loss, -1, 0)}});
  for (StepProgram& program : programs) {
    program.groups = {{"pp", {0, 1}}};
    program.operations[1].bytes = 10;
  }
  const PipelineRun run = simulate_pipeline(programs, kRates);
  expect_span(run.times[0][1], 3, 5);
  expect_span(run.times[1][1], 3, 5);
  EXPECT_DOUBLE_EQ(bubble_share(programs, run, 0), 1 - 3.0 / 5);
  EXPECT_DOUBLE_EQ(bubble_share(programs, run), 0.2);
}

// Rank 1 joins at 2 s, when 2 s are left of rank 0, which so ends at 6; then 1 s is left of rank 1.
TEST(SimulatePipeline, RanksOfAHostShareItsCores) {
  MachineModel machine = kRates;
  machine.cores = 1;
  auto programs = programs_of({{work(4)}, {transfer(OpKind::receive, 9, 2), work(3, {0})}});
  const PipelineRun shared = simulate_pipeline(programs, machine);
  expect_span(shared.times[0][0], 0, 6);
  expect_span(shared.times[1][1], 2, 7);
  machine.ranks_per_host = 1;
  const PipelineRun apart = simulate_pipeline(programs, machine);
  expect_span(apart.times[0][0], 0, 4);
  machine.ranks_per_host = 0;
  machine.cores = 2;
  expect_span(simulate_pipeline(programs, machine).times[1][1], 2, 5);
}

TEST(SimulatePipeline, RanksOutsideAreNotWaitedFor) {
  auto programs = programs_of({{make_operation(OpKind::reduce_start, -1, 0), transfer(OpKind::send, 7, 2)},
                               {make_operation(OpKind::reduce_start, -1, 0), work(9)}});
  for (StepProgram& program : programs) program.groups = {{"fsdp", {program.rank, program.rank + 2}}};
  const PipelineRun run = simulate_pipeline(programs, kRates);
  expect_span(run.times[0][1], 0, 2);
}

TEST(SimulatePipeline, ProgramsThatWaitForEachOtherAreRefused) {
  const auto programs = programs_of({{transfer(OpKind::receive, 1, 1), transfer(OpKind::send, 1, 1, {0})},
                                     {transfer(OpKind::receive, 0, 1), transfer(OpKind::send, 0, 1, {0})}});
  EXPECT_CONTAINS(message_of<Error>([&] { simulate_pipeline(programs, kRates); }),
                  "in a cycle: rank 0 does not get past receive from rank 1");
}

TEST(SimulatePipeline, BubblesOfUniformStagesAreThoseOfThePapers) {
  for (const int ranks : {2, 4}) {
    for (const int micro_batches : {4, 8}) {
      for (const ScheduleKind& kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
        const auto programs = uniform_programs(kind, ranks, 1, micro_batches);
        EXPECT_NEAR(bubble_share(programs, simulate_pipeline(programs, kRates)),
                    (ranks - 1.0) / (micro_batches + ranks - 1), 1e-12)
            << kind.name << " " << ranks << " " << micro_batches;
      }
      const auto interleaved = uniform_programs(ScheduleKind::interleaved_1f1b, ranks, 2, micro_batches);
      EXPECT_NEAR(bubble_share(interleaved, simulate_pipeline(interleaved, kRates)),
                  (ranks - 1.0) / (2 * micro_batches + ranks - 1), 1e-12);
    }
  }
}

TEST(SimulatePipeline, TheCriticalPathHasNoGaps) {
  for (const ScheduleKind& kind : all_kinds()) {
    const auto programs = pipeline(kind, 4, kind.stages.min, 5, 10);
    const PipelineRun run = simulate_pipeline(programs, kRates);
    double end = 0;
    for (const OperationPlace& place : run.critical_path) {
      const OperationTime& time = element(element(run.times, place.program), place.operation);
      EXPECT_EQ(time.start, end) << kind.name;
      end = time.end;
    }
    EXPECT_EQ(end, run.seconds());
  }
}

TEST(SimulatePipeline, TheCriticalPathIsNamedByItsKindsOfWork) {
  const auto programs = programs_of({{work(6), transfer(OpKind::send, 1, 1, {0})},
                                     {work(2), transfer(OpKind::receive, 0, 1), work(3, {1})}});
  EXPECT_EQ(critical_path_text(programs, simulate_pipeline(programs, kRates)),
            "forward 90 %, messages between stages 10 %");
}

TEST(TimelineOfRun, EqualsTheTimesThatTheScheduleHasByItself) {
  for (const ScheduleKind& kind : all_kinds()) {
    const int stages = kind.stages.min;
    const auto programs = uniform_programs(kind, 4, stages, 8);
    const Schedule schedule = make_schedule(kind, 4, stages, 8);
    const Timeline timeline = timeline_of(programs, simulate_pipeline(programs, kRates), schedule);
    const Timeline expected = simulate(schedule, uniform_times(4 * stages, 1, 1, 1));
    EXPECT_EQ(timeline.makespan, expected.makespan) << kind.name;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(timeline.ranks[rank].busy, expected.ranks[rank].busy) << kind.name;
      EXPECT_DOUBLE_EQ(timeline.ranks[rank].bubble_share, expected.ranks[rank].bubble_share);
      EXPECT_EQ(timeline.ranks[rank].peak_activations, expected.ranks[rank].peak_activations);
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
