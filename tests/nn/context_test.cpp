// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/context.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/data/context_part.h"
#include "tests/nn/one_call.h"
#include "tests/nn/tiny_model.h"

namespace stepforge::testing {
namespace {

TEST(BatchTensors, RefuseBoundariesThatDoNotCoverTheTokens) {
  Batch batch = made_up_batch(2, 8, 50);
  EXPECT_NO_THROW(BatchTensors{batch});
  batch.cu_seqlens = {0, 8};
  EXPECT_THROW(BatchTensors{batch}, Error);
  batch.cu_seqlens = {};
  EXPECT_THROW(BatchTensors{batch}, Error);
}

/// Row 0 has documents of 5 and 11 tokens; parts of 8 tokens in chunks of 4.
TEST(BatchTensors, RangesOfAPartNameTheQueriesOfEachDocument) {
  Batch rows = empty_batch(16, 1);
  append_row(made_up_row(0, 16, 50, {5}), 0, rows);
  const BatchTensors head(take_part(rows, {0, 2, true}));  // tokens 0 to 3 and 12 to 15
  ASSERT_EQ(head.attention_ranges.size(), 2U);
  EXPECT_EQ(head.attention_ranges[0].queries, 4);
  EXPECT_EQ(head.attention_ranges[0].past, 0);
  EXPECT_EQ(head.attention_ranges[1].query_begin, 4);
  EXPECT_EQ(head.attention_ranges[1].keys, 11);
  EXPECT_EQ(head.attention_ranges[1].past, 7);
  // Of the other part's tokens 4 to 11, the last four see token 4 not at all and tokens 5 to 11.
  const std::vector<AttentionRange> to_middle = head.ranges_to(1);
  ASSERT_EQ(to_middle.size(), 1U);
  EXPECT_FALSE(to_middle[0].causal);
  EXPECT_EQ(to_middle[0].key_begin, 1);
  EXPECT_EQ(to_middle[0].past, 7);
}

TEST(AttendPart, RefusesAModelMadeForWholeRows) {
  const BatchTensors part(take_part(made_up_batch(1, 16, 50), {0, 2, true}));
  const AttentionShape shape{2, 1, 4, 0.5};
  EXPECT_THROW(attend_by_calls(at::empty({8, shape.qkv_width()}), shape, part), Error);
}

}  // namespace
}  // namespace stepforge::testing
