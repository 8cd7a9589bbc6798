// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/synthetic.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

Row row_of(const SyntheticSource& source, int64_t number) {
  Row row;
  source.read(number, row);
  return row;
}

SyntheticOptions options() {
  return {.seed = 7, .vocab_size = 50, .seq_len = 64, .rows = 100};
}

TEST(Synthetic, ARowIsAFunctionOfSeedAndRow) {
  const SyntheticSource source(options());
  auto other_seed = options();
  other_seed.seed = 8;
  EXPECT_EQ(row_of(source, 5).tokens, row_of(SyntheticSource(options()), 5).tokens);
  EXPECT_NE(row_of(source, 5).tokens, row_of(source, 6).tokens);
  EXPECT_NE(row_of(source, 5).tokens, row_of(SyntheticSource(other_seed), 5).tokens);
  auto shifted = options();
  shifted.first_row = 5;
  EXPECT_EQ(row_of(source, 6).tokens, row_of(SyntheticSource(shifted), 1).tokens);
}

TEST(Synthetic, MostTokensFollowFromTheOneBefore) {
  const SyntheticSource source(options());
  std::map<std::pair<int32_t, int32_t>, int> pairs;
  std::map<int32_t, int> best;
  int total = 0;
  for (int64_t number = 0; number < 100; ++number) {
    const Row row = row_of(source, number);
    ASSERT_EQ(row.tokens.size(), 65U);
    EXPECT_TRUE(row.document_starts.empty());
    for (size_t i = 0; i + 1 < row.tokens.size(); ++i, ++total) {
      ASSERT_GE(row.tokens[i], 0);
      ASSERT_LT(row.tokens[i], 50);
      int& count = pairs[{row.tokens[i], row.tokens[i + 1]}];
      best[row.tokens[i]] = std::max(best[row.tokens[i]], ++count);
    }
  }
  int predictable = 0;
  for (const auto& [token, count] : best) predictable += count;
  EXPECT_NEAR(static_cast<double>(predictable) / total, 7.0 / 8 + 1.0 / 8 / 50, 0.03);
}

TEST(Synthetic, RowsAreMadeOfDocumentsOfRandomLengths) {
  auto packed = options();
  packed.document_length = 10;
  const SyntheticSource source(packed);
  std::set<int32_t> lengths;
  int64_t documents = 0;
  for (int64_t number = 0; number < 100; ++number) {
    int32_t begin = 0;
    for (const int32_t start : row_of(source, number).document_starts) {
      EXPECT_GT(start, begin);
      EXPECT_LE(start, 64);
      lengths.insert(start - begin);
      begin = start;
      ++documents;
    }
  }
  EXPECT_EQ(*lengths.begin(), 1);
  EXPECT_EQ(*lengths.rbegin(), 19);
  EXPECT_NEAR(static_cast<double>(documents) / 100, 6.4, 0.7);
}

TEST(Synthetic, RefusesNumbersOutOfRange) {
  auto bad = options();
  bad.vocab_size = 0;
  EXPECT_CONTAINS(message_of<UsageError>([&] { const SyntheticSource source(bad); }),
                  "the vocabulary size is 0");
  bad = options();
  bad.rows = 0;
  EXPECT_CONTAINS(message_of<UsageError>([&] { const SyntheticSource source(bad); }),
                  "the number of rows is 0");
}

}  // namespace
}  // namespace stepforge::testing
