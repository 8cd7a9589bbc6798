// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/pipeline_plan.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/load.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/schedule/csv.h"
#include "stepforge/schedule/generators.h"
#include "tests/support/strings.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

/// Four micro-batches of a model of four layers.
Config pipelined(const Strings& settings) {
  Strings all = {"model.n_layers=4", "model.vocab_size=256", "training.seq_len=16",
                 "training.local_batch_size=1", "training.global_batch_size=4"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config({}, all).config;
}

const RankId kTwoRanks{0, 2};
const std::string kTwo = "parallelism.pipeline_parallel_degree=2";

PipelinePlan plan_of(const Config& config, RankId rank = kTwoRanks) {
  return plan_job(config, rank).pipeline;
}

TEST(PipelinePlan, WithoutStagesIsTheModelAlone) {
  const PipelinePlan plan = plan_of(pipelined({}), {});
  EXPECT_EQ(plan.ranks(), 0);
  EXPECT_EQ(plan.part(0).blocks.size(), 6U);
  EXPECT_EQ(plan.tied_unit().owner, -1);
}

TEST(PipelinePlan, GivesEachRankItsStages) {
  const PipelinePlan plan =
      plan_of(pipelined({kTwo, "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"}));
  EXPECT_EQ(plan.stages_of(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(plan.stages_of(1), (std::vector<int>{1, 2}));
  EXPECT_EQ(plan.schedule.micro_batches, 4);
  EXPECT_EQ(plan.part(0).blocks.front().name, "embedding");
  EXPECT_EQ(plan.part(0).blocks.back().name, "head");
}

// Of the cuts with stages of at most three layers another one needs less memory, but then the ranks differ by more.
TEST(PipelinePlan, MemoryDoesNotMakeTheScheduleSlower) {
  const PipelinePlan plan =
      plan_of(pipelined({kTwo, "parallelism.pipeline_parallel_schedule=ZBVZeroBubble", "model.n_layers=8",
                         "model.dim=256", "model.n_heads=8", "model.n_kv_heads=4", "model.ffn_dim=704",
                         "model.vocab_size=4096", "training.seq_len=256", "training.global_batch_size=8"}));
  std::vector<int> blocks(4, 0);
  for (const BlockSpec& block : plan.model.blocks) ++blocks[static_cast<std::size_t>(block.stage)];
  EXPECT_EQ(blocks, (std::vector<int>{3, 2, 3, 2}));
}

TEST(PipelinePlan, ATiedEmbeddingHasTwoCopiesWhereItsStagesAreOnTwoRanks) {
  const std::string tied = "model.tie_embeddings=true";
  const TiedUnit unit = plan_of(pipelined({kTwo, tied})).tied_unit();
  EXPECT_EQ(unit.name, "embedding");
  EXPECT_EQ(unit.owner, 0);
  EXPECT_EQ(unit.copy, 1);
  const Config one_rank = pipelined({kTwo, tied, "parallelism.pipeline_parallel_schedule=DualPipeV"});
  EXPECT_EQ(plan_of(one_rank).tied_unit().name, "");
  EXPECT_EQ(plan_of(pipelined({kTwo})).tied_unit().name, "");
}

TEST(PipelinePlan, TheFirstTrainedStageIsThatOfTheFirstUnitThatIsNotFrozen) {
  const Config config = pipelined({kTwo, "parallelism.pipeline_parallel_schedule=LoopedBFS"});
  ModelSpec model = plan_model(config);
  for (size_t u = 0; u < 3; ++u) model.units[u].trainable = false;  // the embedding and two layers
  const PipelinePlan plan = plan_pipeline(config, model, model, kTwoRanks);
  EXPECT_EQ(plan.first_trained_stage, plan.model.blocks[3].stage);
  EXPECT_GT(plan.first_trained_stage, 0);
  for (UnitSpec& unit : model.units) unit.trainable = false;
  EXPECT_CONTAINS(message_of<UsageError>([&] { plan_pipeline(config, model, model, kTwoRanks); }),
                  "every unit of the model is frozen");
}

TEST(PipelinePlan, RefusesStagesThatDoNotDivideIntoTheRanks) {
  EXPECT_CONTAINS(message_of<UsageError>(
                      [] { plan_of(pipelined({kTwo, "parallelism.pipeline_parallel_layers_per_stage=2"})); }),
                  "3 pipeline stages do not divide into parallelism.pipeline_parallel_degree = 2 ranks");
}

TEST(PipelinePlan, AScheduleFileMustHaveTheRanksAndMicroBatchesOfTheJob) {
  const TempFolder folder;
  const std::string file = (folder / "own.csv").string();
  const auto plan = [&](int ranks, int micro_batches) {
    write_text(file, schedule_csv(make_schedule(ScheduleKind::gpipe, ranks, 1, micro_batches)));
    return plan_of(pipelined({kTwo, "parallelism.pipeline_parallel_schedule_csv=" + file}));
  };
  EXPECT_EQ(plan(2, 4).schedule.actions, make_schedule(ScheduleKind::gpipe, 2, 1, 4).actions);
  EXPECT_CONTAINS(message_of<UsageError>([&] { plan(3, 4); }), file,
                  "is a schedule for 3 ranks, but parallelism.pipeline_parallel_degree is 2");
  EXPECT_CONTAINS(message_of<UsageError>([&] { plan(2, 5); }), file,
                  "is a schedule for 5 micro-batches, but a step has 4 on each rank");
}

/// The programs of all stages are proved, so a list that one stage refused would refuse the job.
TEST(PipelinePlan, ListsOfNamesAreThoseOfTheWholeModelOnEveryStage) {
  const Strings lists{
      kTwo, "activation_checkpoint.mode=blocks", "activation_checkpoint.blocks=[0, 3]",
      "parallelism.data_parallel_shard_degree=2",
      "parallelism.fsdp_prefetch_lists=[{unit=\"layers.0\", forward=[\"layers.1\", \"layers.3\"]}, "
      "{unit=\"layers.3\", backward=[\"layers.2\"]}]"};
  const auto prove = [](const Config& config, int rank) {
    return prove_train_step(plan_job(config, {rank, 4})).program();
  };
  const auto recomputed = [](const StepProgram& program) {
    std::vector<std::string> names;
    for (const Operation& operation : program.operations) {
      if (operation.kind == OpKind::recompute && operation.micro_batch == 0)
        names.push_back(program.blocks[static_cast<size_t>(operation.block)].name);
    }
    return names;
  };
  EXPECT_EQ(recomputed(prove(pipelined(lists), 0)), (Strings{"layers.0"}));
  EXPECT_EQ(recomputed(prove(pipelined(lists), 2)), (Strings{"layers.3"}));
  Strings regions{kTwo, "parallelism.data_parallel_shard_degree=2", "activation_checkpoint.mode=regions",
                  "activation_checkpoint.regions=[\"attention\"]",
                  "parallelism.pipeline_parallel_stages=[{blocks=[\"embedding\"]}, {blocks=[\"layers.0\", "
                  "\"layers.1\", \"layers.2\", \"layers.3\", \"head\"]}]"};
  EXPECT_NO_THROW(prove(pipelined(regions), 0));
  const Strings calls{regions[0], regions[1], "activation_checkpoint.mode=calls",
                      "activation_checkpoint.calls=[\"swiglu\"]", regions.back()};
  EXPECT_NO_THROW(prove(pipelined(calls), 0));
  Strings unknown = lists;
  unknown.emplace_back("parallelism.fsdp_prefetch_lists=[{unit=\"layers.9\", forward=[\"layers.1\"]}]");
  EXPECT_CONTAINS(message_of<UsageError>([&] { prove(pipelined(unknown), 0); }), "layers.9");
}

}  // namespace
}  // namespace stepforge::testing
