// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/plan_text.h"

#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "stepforge/step/build.h"
#include "stepforge/step/memory.h"
#include "tests/step/expert_model.h"
#include "tests/step/pipeline.h"
#include "tests/step/programs.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

std::string plan_of(const ModelSpec& model, const RankOptions& options) {
  PlanText text;
  text.title = "tiny";
  text.seq_len = 16;
  text.tokens_per_step = 4096;
  text.table = TableOptions();
  return render_plan(model, model, build_step(model, options), text);
}

TEST(RenderPlan, ShowsParametersFlopsTokensAndPeak) {
  const ModelSpec model = small_model(3);
  const RankOptions options = small_options(4);
  const std::string plan = plan_of(model, options);
  const MemoryAccount memory = account(build_step(model, options));
  EXPECT_CONTAINS(plan, "tiny: 736 parameters (736), 5 units, 5 blocks");
  EXPECT_CONTAINS(plan, "4,096 tokens per step in 4 micro-batches per rank");
  EXPECT_CONTAINS(plan, with_thousands(memory.peak_bytes));
  EXPECT_CONTAINS(plan, "reached at operation");
  for (const char* kind : {"weights", "gradients", "optimizer", "activations", "workspace"})
    EXPECT_CONTAINS(plan, kind);
}

TEST(RenderPlan, ListsOperationsOnlyIfAskedFor) {
  const ModelSpec model = small_model(3);
  const StepProgram program = build_step(model, small_options(4));
  const std::string plan = render_plan(model, model, program, {});
  EXPECT_TRUE(plan.ends_with(" operations; --program lists them, --all each of them\n")) << plan;
  EXPECT_EQ(plan.find("load_batch"), std::string::npos);
  PlanText text;
  text.table = TableOptions();
  EXPECT_CONTAINS(render_plan(model, model, program, text), "load_batch");
}

TEST(RenderPlan, FitsATerminalAndHasNoExponents) {
  ModelSpec model = small_model(126);
  RankOptions options = small_options(1);
  options.recompute.mode = RecomputeMode::regions;
  options.recompute.regions = {"attention", "mlp"};
  PlanText text;
  text.machine.flops_per_second = 1;
  const std::string plan = render_plan(model, model, build_step(model, options), text);
  std::istringstream lines(plan);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110U) << line;
  EXPECT_EQ(plan.find("e+"), std::string::npos) << plan;
  EXPECT_EQ(plan.find("_slot"), std::string::npos) << plan;
}

TEST(RenderPlan, SaysBelowTheRatesWhatTheyAreWorth) {
  const ModelSpec model = small_model(1);
  PlanText text;
  text.rates_note = "These rates are an assumption";
  EXPECT_CONTAINS(render_plan(model, model, build_step(model, small_options(1)), text),
                  "5 us per operation\n  These rates are an assumption\n");
}

TEST(RenderPlan, FoldsAlikeUnitsAndBlocks) {
  const std::string plan = plan_of(small_model(126), small_options(1));
  EXPECT_CONTAINS(plan, "layers.0 to layers.125, each of 126");
  EXPECT_LT(std::count(plan.begin(), plan.end(), '\n'), 60);
}

TEST(RenderPlan, OfAPipelineRankHasTheUnitsAndBlocksOfItsStages) {
  const Schedule schedule = make_schedule(ScheduleKind::interleaved_1f1b, 2, 2, 4);
  const ModelSpec model = staged(small_model(10), 4);
  RankOptions options = small_options(4);
  options.plan.dims.dp_shard = 1;
  const std::vector<StepProgram> programs = pipeline_programs(model, options, schedule);
  PlanText text;
  text.pipeline = "Pipeline: two ranks\n";
  const std::string plan = render_plan(model, part_of(model, schedule, 1), programs[1], text);
  EXPECT_CONTAINS(plan, "12 units, 12 blocks");
  EXPECT_CONTAINS(plan, "Pipeline: two ranks\n");
  EXPECT_CONTAINS(plan, "  layers.2 to layers.4, each of 3 ");
  EXPECT_CONTAINS(plan, "  layers.8 to layers.9, each of 2 ");
  EXPECT_EQ(plan.find("  embedding "), std::string::npos) << plan;
}

TEST(RenderPlan, FoldsBlocksThatAlternate) {
  RankOptions options = small_options(1);
  options.recompute.mode = RecomputeMode::every_n;
  options.recompute.n = 2;
  const std::string plan = plan_of(small_model(32), options);
  EXPECT_CONTAINS(plan, "layers.0, layers.2 to layers.30, each of 16");
  EXPECT_CONTAINS(plan, "layers.1, layers.3 to layers.31, each of 16");
  EXPECT_EQ(plan.find("  layers.4 "), std::string::npos) << plan;
}

TEST(RenderPlan, FoldsThePartsOfLayersWithSpreadExperts) {
  RankOptions options = small_options(1);
  options.plan.dims = {.ep = 2};
  options.rank = {0, 2};
  const std::string plan = plan_of(expert_model(), options);
  for (const char* part : {"", ".shared", ".experts", ".join"})
    EXPECT_CONTAINS(plan, format("  layers.0{} to layers.1{}, each of 2 ", part, part));
  for (const char* operation : {"dispatch", "combine", "combine_gradient", "dispatch_gradient"})
    EXPECT_CONTAINS(plan, format("  ep {} ", operation));
}

TEST(RenderPlan, PrintsTheSummaryBeforeTheTables) {
  const ModelSpec model = small_model(2);
  PlanText text;
  text.verdict = "Memory: it fits";
  text.machine.name = "my machine";
  const std::string plan = render_plan(model, model, build_step(model, small_options(1)), text);
  const auto at = [&](const char* part) {
    const std::size_t found = plan.find(part);
    EXPECT_NE(found, std::string::npos) << part << "\n" << plan;
    return found;
  };
  EXPECT_LT(at("Memory: it fits"), at("Predicted step: "));
  EXPECT_LT(at("on a rank of my machine: 100 GFLOP/s"), at("predicted peak"));
  EXPECT_LT(at("predicted peak"), at("\nUnits\n"));
  EXPECT_LT(at("\nBlocks"), at("\nStep program"));
  EXPECT_EQ(plan.find("hidden"), std::string::npos) << plan;
}

TEST(RenderPlan, ShowsFrozenUnitsAndRecomputedRegions) {
  ModelSpec model = small_model(2);
  model.units[0].trainable = false;
  RankOptions options = small_options(1);
  options.recompute.mode = RecomputeMode::regions;
  options.recompute.regions = {"attention", "mlp"};
  const std::string plan = plan_of(model, options);
  EXPECT_CONTAINS(plan, "frozen");
  EXPECT_CONTAINS(plan, "attention+mlp");
}

TEST(RenderPlan, ShowsTheCollectivesOfOneOfManyRanks) {
  RankOptions options = small_options(3);
  options.set_ranks(5, 4, 2);
  const ModelSpec model = small_model(2);
  PlanText text;
  const StepProgram program = build_step(model, options);
  GroupPool pool;
  text.proof = check_symmetric(program, 8, [&](int rank) { return pool(groups_of(rank, 4, 2)); });
  const std::string plan = render_plan(model, model, program, text);
  EXPECT_CONTAINS(plan, "Rank 5 of 8, in groups fsdp of 4, dp_replicate of 2, loss of 8");
  EXPECT_CONTAINS(plan, "over 7 groups (by symmetry)");
  for (const char* line : {"fsdp gather_start                              4      64.0 KiB        65,536",
                           "fsdp reduce_start                              4      64.0 KiB        65,536",
                           "dp_replicate all_reduce_start                  4      16.0 KiB        16,384",
                           "loss in all                                    2         304 B           304"}) {
    EXPECT_CONTAINS(plan, line);
  }
}

TEST(RenderPlan, ShowsTheLastMicroBatchIfItReduces) {
  RankOptions options = small_options(5);
  options.set_ranks(0, 1, 2);
  const StepProgram program = build_step(small_model(1), options);
  const std::string table = operation_table(program);
  EXPECT_CONTAINS(table, "for micro-batches 1 to 3: operations");
  EXPECT_CONTAINS(table, "loss_forward_backward head m4");
  EXPECT_EQ(table.find("loss_forward_backward head m3"), std::string::npos) << table;
}

}  // namespace
}  // namespace stepforge::testing
