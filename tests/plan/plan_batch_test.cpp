// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/plan/job_plan.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(PlanBatch, CutsTheGlobalBatchIntoMicroBatches) {
  TrainingConfig training;
  training.seq_len = 16;
  training.local_batch_size = 4;
  EXPECT_EQ(plan_batch(training).micro_batches(), 1);
  training.global_batch_size = 12;
  EXPECT_EQ(plan_batch(training).micro_batches(), 3);
  EXPECT_EQ(plan_batch(training).tokens_per_step(), 192);
  training.reduction = ReductionMode::ordered;
  EXPECT_EQ(plan_batch(training).micro_batches(), 12);
  EXPECT_EQ(plan_batch(training).rows_per_micro_batch, 1);
}

TEST(PlanBatch, WhatDoesNotDivideIsRefusedWithBothNumbers) {
  TrainingConfig training;
  training.local_batch_size = 4;
  training.global_batch_size = 10;
  const std::string message = message_of<UsageError>([&] { plan_batch(training); });
  EXPECT_CONTAINS(message, "global_batch_size = 10");
  EXPECT_CONTAINS(message, "micro-batches of 4 rows (training.local_batch_size)");
}

}  // namespace
}  // namespace stepforge::testing
