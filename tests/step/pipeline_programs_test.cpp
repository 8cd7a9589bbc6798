// SPDX-License-Identifier: Apache-2.0
// The programs that schedules are lowered to: frozen stages, evaluation and generation.
#include <gtest/gtest.h>

#include "tests/step/programs.h"

namespace stepforge::testing {
namespace {

int number_of(const StepProgram& program, OpKind kind) {
  return static_cast<int>(std::ranges::count(program.operations, kind, &Operation::kind));
}

/// Of one rank per stage. The units of the first `frozen` blocks are frozen.
Programs with_frozen(ScheduleKind kind, int stages_per_rank, int blocks, int first_trained_stage) {
  ModelSpec model = small_model(6);
  for (int b = 0; b < blocks; ++b) element(model.units, b).trainable = false;
  RankOptions options = small_options(4);
  options.plan.dims.dp_shard = 1;
  options.pipeline.first_trained_stage = first_trained_stage;
  return pipeline_programs(model, options, make_schedule(kind, 4, stages_per_rank, 4));
}

TEST(PipelinePrograms, FrozenFirstStagesRunNoBackwardAndSendNoGraph) {
  const Programs programs = with_frozen(ScheduleKind::one_f_one_b, 1, 4, 2);  // two blocks in each stage
  ASSERT_NO_THROW(check_programs(programs));
  for (const int rank : {0, 1}) {
    const StepProgram& frozen = element(programs, rank);
    EXPECT_EQ(number_of(frozen, OpKind::backward), 0);
    EXPECT_EQ(number_of(frozen, OpKind::receive_gradient), 0);
    EXPECT_EQ(number_of(frozen, OpKind::update), 0);
    EXPECT_EQ(number_of(frozen, OpKind::join_stage_norms), 1);
    for (const Operation& operation : frozen.operations) EXPECT_FALSE(operation.keep_graph);
  }
  EXPECT_EQ(number_of(programs[2], OpKind::send_gradient), 0);
  EXPECT_EQ(number_of(programs[2], OpKind::backward), 2 * 4);
  EXPECT_EQ(number_of(programs[3], OpKind::send_gradient), 4);
}

TEST(PipelinePrograms, AStageThatIsFrozenInPartRunsBackwardFromItsFirstTrainedBlock) {
  const Programs programs = with_frozen(ScheduleKind::one_f_one_b, 1, 3, 1);
  ASSERT_NO_THROW(check_programs(programs));
  EXPECT_EQ(number_of(programs[1], OpKind::backward), 4);  // of the second of its two blocks
  EXPECT_EQ(number_of(programs[1], OpKind::send_gradient), 0);
}

TEST(PipelinePrograms, SoundProgramsOfEveryScheduleWithFrozenStages) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const std::string_view name = kind.name;
    const int per_rank = kind.stages.min;
    for (int blocks = 0; blocks < 7; ++blocks) {
      const int first = blocks * 4 * per_rank / 8;
      EXPECT_NO_THROW(check_programs(with_frozen(kind, per_rank, blocks, first))) << name << " " << blocks;
    }
  }
}

/// More leaves of a tied embedding wait at once than a tree has levels.
TEST(PipelinePrograms, SoundProgramsOfEveryScheduleWithOrderedSumsOfATiedEmbedding) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const std::string_view name = kind.name;
    for (const int micro_batches : {1, 2, 5, 8, 80}) {
      const Schedule schedule = make_schedule(kind, 2, kind.stages.min, micro_batches);
      for (const bool offload : {false, true}) {
        RankOptions options = small_options(micro_batches);
        options.ordered = true;
        options.plan.dims = {.dp_replicate = offload ? 2 : 1, .dp_shard = micro_batches < 80 ? 2 : 1};
        options.plan.offload = offload;
        if (schedule.rank_of_stage.front() != schedule.rank_of_stage.back())
          options.plan.tied = {"embedding", schedule.rank_of_stage.front(), schedule.rank_of_stage.back()};
        EXPECT_NO_THROW(check_programs(pipeline_programs(small_model(4, true), options, schedule)))
            << name << " " << micro_batches;
      }
    }
  }
}

/// DualPipeV splits some backwards of a block and runs others whole: what weights need of the graph lives as long.
TEST(PipelinePrograms, WhatWeightsNeedOfAGraphLivesUntilTheirBackward) {
  int whole = 0;
  int split = 0;
  for (const StepProgram& program : pipeline(ScheduleKind::dual_pipe_v, 4, 2, 16, 14)) {
    for (const Operation& operation : program.operations) {
      if (find_buffer(program, operation.frees, BufferKind::weight_inputs) < 0) continue;
      whole += operation.kind == OpKind::backward ? 1 : 0;
      split += operation.kind == OpKind::backward_weight ? 1 : 0;
      EXPECT_TRUE(has_trait(operation.kind, kContributes)) << operation_text(program, operation);
    }
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(split, 0);
}

TEST(PipelinePrograms, EvaluationAndGenerationRunForwardThroughAllStages) {
  for (const ProgramKind kind : {ProgramKind::evaluate, ProgramKind::generate}) {
    for (const auto& [schedule, per_rank] :
         {std::pair{ScheduleKind::one_f_one_b, 1}, std::pair{ScheduleKind::zbv_zero_bubble, 2},
          std::pair{ScheduleKind::interleaved_1f1b, 2}}) {
      RankOptions options = small_options(1);
      options.kind = kind;
      options.plan.dims.dp_shard = kind == ProgramKind::evaluate ? 2 : 1;
      const Programs programs =
          pipeline_programs(small_model(6), options, make_schedule(schedule, 4, per_rank, 9));
      ASSERT_NO_THROW(check_programs(programs));
      int heads = 0;
      for (const StepProgram& program : programs) {
        EXPECT_EQ(number_of(program, OpKind::send_gradient) + number_of(program, OpKind::backward), 0);
        const bool evaluates = kind == ProgramKind::evaluate;
        EXPECT_EQ(number_of(program, evaluates ? OpKind::share_loss : OpKind::share_logits), 1);
        heads += number_of(program, evaluates ? OpKind::loss : OpKind::logits);
      }
      EXPECT_EQ(heads, options.plan.dims.dp_shard);
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
