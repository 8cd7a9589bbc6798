// SPDX-License-Identifier: Apache-2.0
// Where the rows of a stream come from.
#include "stepforge/data/row_stream.h"

#include <memory>

#include <gtest/gtest.h>

#include "tests/data/numbered_source.h"

namespace stepforge::testing {
namespace {

std::shared_ptr<const RowStream> two_numbered_sources() {
  return RowStream::mixture(
      {{std::make_shared<NumberedSource>(7, 0), 0.7}, {std::make_shared<NumberedSource>(5, 100), 0.3}}, 3,
      /*shuffle=*/true, {.rows_per_step = 5, .fill_epochs = true});
}

TEST(RowStream, EachRowOfABatchHasItsNumberInItsSource) {
  const auto stream = two_numbered_sources();
  const Batch batch = stream->rows(0, 2 * stream->rows_per_epoch());
  ASSERT_EQ(batch.source_rows.size(), static_cast<size_t>(batch.rows));
  int padding = 0;
  for (size_t row = 0; row < batch.source_rows.size(); ++row) {
    if (batch.sources[row] == kNoSource) {
      EXPECT_EQ(batch.source_rows[row], -1);
      ++padding;
    } else {
      EXPECT_EQ(batch.tokens[2 * row], 100 * batch.sources[row] + batch.source_rows[row]);
    }
  }
  EXPECT_EQ(padding, 6) << "an epoch of 12 rows is filled up to 15";
}

TEST(RowStream, EveryRowOfAMixtureComesOnceAndInOrder) {
  const auto every_row = two_numbered_sources()->every_row();
  ASSERT_EQ(every_row->total_rows(), 12);
  const Batch batch = every_row->rows(0, 12);
  for (int64_t row = 0; row < 12; ++row) {
    const auto at = static_cast<size_t>(row);
    EXPECT_EQ(batch.sources[at], row < 7 ? 0 : 1);
    EXPECT_EQ(batch.source_rows[at], row < 7 ? row : row - 7);
    EXPECT_EQ(batch.tokens[2 * at], row < 7 ? row : 100 + row - 7);
  }
}

}  // namespace
}  // namespace stepforge::testing
