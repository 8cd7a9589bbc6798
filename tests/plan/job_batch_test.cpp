// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_batch.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(PlanBatch, SplitsTheGlobalBatchIntoMicroBatches) {
  Config config;
  TrainingConfig& training = config.training;
  training.seq_len = 16;
  training.local_batch_size = 4;
  EXPECT_EQ(plan_batch(config).micro_batches(), 1);
  training.global_batch_size = 12;
  EXPECT_EQ(plan_batch(config).micro_batches(), 3);
  EXPECT_EQ(plan_batch(config).tokens_per_step(), 192);
  training.reduction = ReductionMode::ordered;
  EXPECT_EQ(plan_batch(config).micro_batches(), 12);
  EXPECT_EQ(plan_batch(config).rows_per_micro_batch, 1);
}

TEST(PlanBatch, RefusesABatchThatDoesNotDivideAndNamesBothNumbers) {
  Config config;
  TrainingConfig& training = config.training;
  training.local_batch_size = 4;
  training.global_batch_size = 10;
  const std::string message = message_of<UsageError>([&] { plan_batch(config); });
  EXPECT_CONTAINS(message, "global_batch_size = 10");
  EXPECT_CONTAINS(message, "micro-batches of 4 rows (training.local_batch_size)");
}

TEST(PlanBatch, RanksShareTheRowsOfAStep) {
  Config config;
  TrainingConfig& training = config.training;
  training.local_batch_size = 2;
  EXPECT_EQ(plan_batch(config, 4).rows_per_step, 8);
  EXPECT_EQ(plan_batch(config, 4).micro_batches(), 1);
  training.global_batch_size = 24;
  EXPECT_EQ(plan_batch(config, 4).micro_batches(), 3);
  EXPECT_EQ(plan_batch(config, 4).rows_per_step, 24);
  EXPECT_EQ(plan_batch(config, 1).micro_batches(), 12);
}

TEST(PlanBatch, RefusesRowsThatDoNotDivideOverRanksAndSuggestsNumbers) {
  Config config;
  TrainingConfig& training = config.training;
  training.local_batch_size = 4;
  training.global_batch_size = 20;
  const std::string message = message_of<UsageError>([&] { plan_batch(config, 2); });
  EXPECT_CONTAINS(message, "training.global_batch_size = 20") << message;
  EXPECT_CONTAINS(message, "micro-batches of 4 rows (training.local_batch_size)") << message;
  EXPECT_CONTAINS(message, "2 ranks") << message;
  EXPECT_CONTAINS(message, "set global_batch_size to 16 or 24") << message;
}

TEST(PlanBatch, APipelineDividesALocalBatchSoThatRanksComputeAtOnce) {
  Config config;
  config.training.local_batch_size = 8;
  ParallelismConfig& parallelism = config.parallelism;
  const auto rows = [&](int data_ranks = 1) { return plan_batch(config, data_ranks).rows_per_micro_batch; };
  EXPECT_EQ(rows(), 8);
  parallelism.pipeline_parallel_degree = 2;
  EXPECT_EQ(rows(), 2);  // four micro-batches
  EXPECT_EQ(rows(4), 2);
  parallelism.pipeline_parallel_degree = 16;
  EXPECT_EQ(rows(), 1);
  config.training.global_batch_size = 64;
  EXPECT_EQ(rows(), 2);
  EXPECT_EQ(rows(2), 1);
  parallelism.pipeline_parallel_degree = 2;
  EXPECT_EQ(rows(2), 8);
  parallelism.pipeline_parallel_microbatch_size = 4;
  EXPECT_EQ(rows(), 4);
  parallelism.pipeline_parallel_degree = 1;
  EXPECT_EQ(rows(), 8);
}

TEST(PlanBatch, APipelineWithAScheduleFileOrOrderedSumsKeepsItsMicroBatches) {
  Config config;
  config.training.local_batch_size = 8;
  config.parallelism.pipeline_parallel_degree = 2;
  config.parallelism.pipeline_parallel_schedule_csv = "own.csv";
  EXPECT_EQ(plan_batch(config).rows_per_micro_batch, 8);
  config.parallelism.pipeline_parallel_schedule_csv.clear();
  config.training.reduction = ReductionMode::ordered;
  EXPECT_EQ(plan_batch(config).rows_per_micro_batch, 1);
}

TEST(PlanBatch, RowsAreDividedIntoEqualChunks) {
  Config config;
  TrainingConfig& training = config.training;
  training.seq_len = 24;
  training.local_batch_size = 2;
  EXPECT_EQ(plan_batch(config, 1, 0, {0, 3, true}).tokens_per_micro_batch(), 16);
  EXPECT_EQ(plan_batch(config, 1, 0, {0, 3, true}).tokens_per_step(), 48);
  EXPECT_EQ(plan_batch(config, 1, 0, {0, 8, false}).tokens_per_micro_batch(), 6);
  const std::string message = message_of<UsageError>([&] { plan_batch(config, 1, 0, {0, 8, true}); });
  EXPECT_CONTAINS(message, "training.seq_len = 24 is not a multiple of 16");
  EXPECT_CONTAINS(message, "set seq_len to 16 or 32");
}

TEST(PlanBatch, WithSequenceParallelismRowsAreDividedIntoEqualSlices) {
  Config config;
  config.training.seq_len = 24;
  config.parallelism.data_parallel_shard_degree = 1;
  config.parallelism.context_parallel_degree = 2;
  config.parallelism.tensor_parallel_degree = 5;
  const auto batch = [&] {
    return plan_batch(config, rank_layout({}, {.dims = {.dp_shard = 1, .cp = 2, .tp = 5}}, {0, 10}));
  };
  const std::string message = message_of<UsageError>(batch);
  EXPECT_CONTAINS(message, "training.seq_len = 24 is not a multiple of 10");
  EXPECT_CONTAINS(message, "divides the 12 tokens that a rank has of a row into equal slices for 5 ranks");
  EXPECT_CONTAINS(message, "set seq_len to 20 or 40, or parallelism.enable_sequence_parallel = false");
  config.parallelism.enable_sequence_parallel = false;
  EXPECT_EQ(batch().seq_len, 24);
}

TEST(PlanBatch, OrderedSumsNeedPowersOfTwoOverSeveralRanks) {
  Config config;
  TrainingConfig& training = config.training;
  training.reduction = ReductionMode::ordered;
  training.global_batch_size = 24;
  EXPECT_EQ(plan_batch(config, 1).micro_batches(), 24);
  EXPECT_CONTAINS(message_of<UsageError>([&] { plan_batch(config, 3); }), "use 2 or 4 ranks");
  const std::string message = message_of<UsageError>([&] { plan_batch(config, 4); });
  EXPECT_CONTAINS(message, "each of 4 ranks has 6 rows") << message;
  EXPECT_CONTAINS(message, "set training.global_batch_size to 16 or 32") << message;
  training.global_batch_size = 32;
  EXPECT_EQ(plan_batch(config, 4).micro_batches(), 8);
}

}  // namespace
}  // namespace stepforge::testing
