// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/loss_weights.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/data/context_part.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

/// A row of three documents of 4, 3 and 9 tokens; of the last one, four labels count.
Batch some_batch() {
  Batch batch = empty_batch(16, 2);
  Row row;
  row.tokens.resize(17);
  row.document_starts = {4, 7, 16};
  row.counted.assign(17, 1);
  for (const size_t token : {8, 10, 12, 14}) row.counted[token] = 0;
  append_row(row, 0, batch);
  row.document_starts = {};
  row.counted.assign(17, 0);
  append_row(row, 1, batch);
  return batch;
}

TEST(LossWeights, OfTokensAreNotStored) {
  Batch batch = some_batch();
  weigh_labels(LabelWeights::token, batch);
  EXPECT_TRUE(batch.weights.empty());
  EXPECT_EQ(batch.loss_weight(), 9.0);
}

TEST(LossWeights, OfSamplesAddUpToOneEach) {
  Batch batch = some_batch();
  weigh_labels(LabelWeights::sample, batch);
  const auto third = static_cast<float>(1.0 / 3.0);
  std::vector<float> expected = {third, third, third, 0, 0.5F,  0.5F, 0,     0,
                                 0.25F, 0,     0.25F, 0, 0.25F, 0,    0.25F, 0};
  expected.resize(32);  // a row whose labels do not count weighs nothing
  EXPECT_EQ(batch.weights, expected);
  EXPECT_NEAR(batch.loss_weight(), 3.0, 1e-6);
}

TEST(LossWeights, OfSquareAddUpToTheRootOfTheLabels) {
  Batch batch = some_batch();
  weigh_labels(LabelWeights::square, batch);
  EXPECT_EQ(batch.weights[8], 0.5F);
  EXPECT_NEAR(batch.loss_weight(), std::sqrt(3.0) + std::sqrt(2.0) + 2.0, 1e-7);
}

TEST(LossWeights, AddUpToTheSameHoweverTheRowsAreDivided) {
  Batch batch = empty_batch(31, 40);
  Batch halves[2] = {empty_batch(31, 40), empty_batch(31, 40)};
  for (uint64_t r = 0; r < 40; ++r) {
    Row row;
    row.tokens.resize(32);
    row.document_starts = {static_cast<int32_t>(3 + r % 11), static_cast<int32_t>(17 + r % 13)};
    append_row(row, r, batch);
    append_row(row, r, halves[r % 2]);
  }
  weigh_labels(LabelWeights::square, batch);
  for (Batch& half : halves) weigh_labels(LabelWeights::square, half);
  EXPECT_EQ(batch.loss_weight(), halves[0].loss_weight() + halves[1].loss_weight());
}

TEST(LossWeights, GoWithTheTokensOfAContextPart) {
  Batch whole = some_batch();
  weigh_labels(LabelWeights::sample, whole);
  double weight = 0.0;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Batch part = take_part(whole, {rank, 2, /*head_tail=*/true});
    ASSERT_EQ(part.weights.size(), 16U);
    EXPECT_EQ(part.weights[0], rank == 0 ? whole.weights[0] : whole.weights[4]);
    weight += part.loss_weight();
  }
  EXPECT_NEAR(weight, whole.loss_weight(), 1e-6);
}

}  // namespace
}  // namespace stepforge::testing
