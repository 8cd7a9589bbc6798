// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/mixture.h"

#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

std::vector<std::string> names(size_t count) {
  std::vector<std::string> result;
  for (size_t i = 0; i < count; ++i) result.push_back(format("source {}", i));
  return result;
}

Mixture mixture(const std::vector<double>& weights, uint64_t seed = 1) {
  return Mixture(weights, names(weights.size()), seed);
}

TEST(Mixture, DividesABlockByLargestRemainder) {
  EXPECT_EQ(mixture({1, 1}).rows_per_block(), (std::vector<int64_t>{2048, 2048}));
  EXPECT_EQ(mixture({3, 1}).rows_per_block(), (std::vector<int64_t>{3072, 1024}));
  // 4096 / 3 = 1365.33: the remaining row goes to the first of the equal sources.
  EXPECT_EQ(mixture({1, 1, 1}).rows_per_block(), (std::vector<int64_t>{1366, 1365, 1365}));
  // 4096 * 0.7 = 2867.2, 4096 * 0.3 = 1228.8.
  EXPECT_EQ(mixture({0.7, 0.3}).rows_per_block(), (std::vector<int64_t>{2867, 1229}));
}

TEST(Mixture, EachBlockHoldsTheExactShareAndEachSourceItsRowsInRunningOrder) {
  const bool holds = rc::check("mixture", [] {
    const auto parts = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 100)));
    RC_PRE(parts.size() <= 8);
    const Mixture mixed = mixture({parts.begin(), parts.end()}, *rc::gen::arbitrary<uint64_t>());
    const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    std::vector<int64_t> next(parts.size(), 0);
    for (int64_t row = 0; row < 3 * Mixture::kBlockRows; ++row) {
      const RowRef found = mixed.locate(row);
      RC_ASSERT(found.running == next[static_cast<size_t>(found.source)]++);
      if ((row + 1) % Mixture::kBlockRows != 0) continue;
      const int64_t blocks = (row + 1) / Mixture::kBlockRows;
      for (size_t i = 0; i < parts.size(); ++i) {
        RC_ASSERT(next[i] == blocks * mixed.rows_per_block()[i]);
        const double exact = parts[i] / sum * static_cast<double>(Mixture::kBlockRows);
        RC_ASSERT(std::abs(static_cast<double>(mixed.rows_per_block()[i]) - exact) < 1.0);
      }
    }
  });
  EXPECT_TRUE(holds);
}

TEST(Mixture, DependsOnlyOnTheRowNumberNotOnEarlierCalls) {
  const Mixture mixed = mixture({5, 2, 1});
  std::vector<RowRef> forward;
  for (int64_t row = 0; row < 10000; ++row) forward.push_back(mixed.locate(row));
  for (int64_t row = 9999; row >= 0; row -= 37) {
    const RowRef found = mixed.locate(row);
    EXPECT_EQ(found.source, forward[static_cast<size_t>(row)].source);
    EXPECT_EQ(found.running, forward[static_cast<size_t>(row)].running);
  }
}

TEST(Mixture, ShufflesBlocksDifferentlyBySeedAndBlock) {
  const auto order = [](uint64_t seed, int64_t block) {
    const Mixture mixed = mixture({1, 1}, seed);
    std::vector<int64_t> sources;
    for (int64_t i = 0; i < Mixture::kBlockRows; ++i)
      sources.push_back(mixed.locate(block * Mixture::kBlockRows + i).source);
    return sources;
  };
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  const auto sources = order(1, 0);
  const auto first_half = std::accumulate(sources.begin(), sources.begin() + 2048, int64_t{0});
  EXPECT_NEAR(static_cast<double>(first_half), 1024.0, 100.0);  // evenly spread, six standard deviations
}

TEST(Mixture, RefusesASourceWhoseShareRoundsToNothing) {
  const auto message = message_of<UsageError>([] { mixture({100000, 1}); });
  EXPECT_CONTAINS(message, "source 1: weight 1 of a total of 100001 is 0.041 rows in each block of 4096");
  EXPECT_EQ(mixture({4096, 1}).rows_per_block().back(), 1);
}

TEST(Mixture, RefusesWeightsThatAreNotPositive) {
  EXPECT_CONTAINS(message_of<UsageError>([] { mixture({1, 0}); }),
                  "source 1: weight 0 is not a positive number");
  EXPECT_CONTAINS(message_of<UsageError>([] { mixture({-1, 1}); }), "source 0: weight -1");
  EXPECT_CONTAINS(message_of<UsageError>([] { mixture({1, std::nan("")}); }), "weight nan");
  EXPECT_CONTAINS(message_of<UsageError>([] { mixture({1e308, 1e308}); }), "infinity");
}

TEST(RowOrder, DrawsEveryRowOncePerEpoch) {
  const bool holds = rc::check("sample order", [] {
    const int64_t rows = *rc::gen::inRange<int64_t>(1, 300);
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const RowOrder order(rows, seed, *rc::gen::inRange<int64_t>(0, 5), *rc::gen::arbitrary<bool>());
    const int64_t epoch = *rc::gen::inRange<int64_t>(0, 1000);
    std::set<int64_t> drawn;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = order(epoch * rows + i);
      RC_ASSERT(row >= 0 && row < rows);
      drawn.insert(row);
    }
    RC_ASSERT(static_cast<int64_t>(drawn.size()) == rows);
  });
  EXPECT_TRUE(holds);
}

TEST(RowOrder, DiffersByEpochSourceAndSeed) {
  const auto epoch = [](const RowOrder& order, int64_t number) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < 100; ++i) rows.push_back(order(number * 100 + i));
    return rows;
  };
  const auto base = epoch(RowOrder(100, 1, 0, true), 0);
  EXPECT_NE(base, epoch(RowOrder(100, 1, 0, true), 1));
  EXPECT_NE(base, epoch(RowOrder(100, 1, 1, true), 0));
  EXPECT_NE(base, epoch(RowOrder(100, 2, 0, true), 0));
}

TEST(RowOrder, WithoutShufflingIsTheOrderOfTheSource) {
  const RowOrder order(3, 1, 0, false);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 7; ++i) rows.push_back(order(i));
  EXPECT_EQ(rows, (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0}));
}

}  // namespace
}  // namespace stepforge::testing
