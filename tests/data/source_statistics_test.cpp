// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/source_statistics.h"

#include <gtest/gtest.h>

#include "tests/data/numbered_source.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

TEST(SourceStatistics, CountsEachSourceAndItsShare) {
  const auto a = std::make_shared<NumberedSource>(1000, 0);
  a->count(1900, 12345);
  const auto stream = RowStream::mixture({{.name = "a", .source = a, .weight = 3},
                                          {.name = "b", .source = std::make_shared<NumberedSource>(10, 0)}},
                                         {.seed = 1});
  const std::vector<SourceStatistics> statistics = source_statistics(*stream, {"a.txt", ""});
  ASSERT_EQ(statistics.size(), 2U);
  EXPECT_EQ(statistics[0].name, "a");
  EXPECT_EQ(statistics[0].path, "a.txt");
  EXPECT_EQ(statistics[0].documents, 12345);
  EXPECT_EQ(statistics[0].tokens, 1900);
  EXPECT_EQ(statistics[0].rows, 1000);
  EXPECT_EQ(statistics[0].share, 0.75);
  EXPECT_EQ(statistics[0].epochs_per_million, 750.0);
  EXPECT_EQ(statistics[1].epochs_per_million, 25000.0);
  EXPECT_EQ(statistics_table(statistics),
            (std::vector<std::string>{
                "source       documents              tokens            rows     share  epochs/1M rows",
                "a               12,345               1,900           1,000    75.00%          750.00",
                "b                   10                  20              10    25.00%        25000.00"}));
}

}  // namespace
}  // namespace stepforge::testing
