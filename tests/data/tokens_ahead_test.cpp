// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/tokens_ahead.h"

#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/data/loss_weights.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

constexpr int32_t kNone = kIgnoredLabel;
constexpr int32_t kEnd = kNoToken;
using TokenIds = std::vector<int32_t>;

/// Tokens 0 to 8, of which the last one is only a label, with documents at these places.
Row counting_row(std::vector<int32_t> document_starts) {
  Row row;
  row.tokens.resize(9);
  std::iota(row.tokens.begin(), row.tokens.end(), 0);
  row.document_starts = std::move(document_starts);
  return row;
}

Batch batch_of(const std::vector<Row>& rows) {
  Batch batch = empty_batch(8, std::ssize(rows));
  for (size_t i = 0; i < rows.size(); ++i) append_row(rows[i], i, batch);
  return batch;
}

Batch at_depth(Batch batch, int64_t depth) {
  add_tokens_ahead(batch, depth);
  EXPECT_EQ(std::ssize(batch.ahead), depth);
  return batch.ahead.back();
}

TEST(TokensAhead, AreThoseSoMuchLaterInTheSameDocumentWithTheirLabels) {
  const Batch batch = batch_of({counting_row({3}), counting_row({})});
  const Batch one = at_depth(batch, 1);
  // The row's first document ends after token 2; its second one goes on, and so does the second row's.
  EXPECT_EQ(one.tokens, (TokenIds{1, 2, kEnd, 4, 5, 6, 7, kEnd, 1, 2, 3, 4, 5, 6, 7, kEnd}));
  EXPECT_EQ(one.labels, (TokenIds{2, kNone, kNone, 5, 6, 7, 8, kNone, 2, 3, 4, 5, 6, 7, 8, kNone}));
  EXPECT_EQ(one.valid_labels, 12);
  const Batch three = at_depth(batch, 3);
  EXPECT_EQ(three.tokens, (TokenIds{kEnd, kEnd, kEnd, 6, 7, kEnd, kEnd, kEnd,  //
                                    3, 4, 5, 6, 7, kEnd, kEnd, kEnd}));
  EXPECT_EQ(three.labels, (TokenIds{kNone, kNone, kNone, 7, 8, kNone, kNone, kNone,  //
                                    4, 5, 6, 7, 8, kNone, kNone, kNone}));
  EXPECT_EQ(three.valid_labels, 7);
  EXPECT_EQ(one.positions, batch.positions);
  EXPECT_EQ(at_depth(batch, 100).valid_labels, 0);
}

TEST(TokensAhead, HaveLabelsThatCountIfTheyCountWhereTheyAreTheNextToken) {
  Row row = counting_row({});
  row.counted = {1, 1, 1, 0, 0, 1, 1, 1, 1};
  const Batch ahead = at_depth(batch_of({row}), 1);
  EXPECT_EQ(ahead.labels, (TokenIds{2, kNone, kNone, 5, 6, 7, 8, kNone}));
  EXPECT_EQ(ahead.tokens, (TokenIds{1, 2, 3, 4, 5, 6, 7, kEnd}));
}

TEST(TokensAhead, HaveLabelsWithTheWeightsOfNextTokens) {
  Batch batch = batch_of({counting_row({3})});
  weigh_labels(LabelWeights::sample, batch);
  const Batch ahead = at_depth(batch, 1);
  const std::vector<float> expected = {0.5F, 0.0F, 0.0F, 0.2F, 0.2F, 0.2F, 0.2F, 0.0F};
  EXPECT_EQ(ahead.weights, expected);
  EXPECT_NEAR(ahead.loss_weight(), 1.3, 1e-6);
}

TEST(TokensAhead, OfAPartOfARowAreRefused) {
  Batch batch = batch_of({counting_row({})});
  batch.part.degree = 2;
  EXPECT_CONTAINS(message_of<Error>([&] { add_tokens_ahead(batch, 1); }), "only a part of each row");
}

}  // namespace
}  // namespace stepforge::testing
