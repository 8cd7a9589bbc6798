// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/length_groups.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/json.h"
#include "stepforge/data/packed_rows.h"
#include "stepforge/data/peer_orders.h"
#include "stepforge/data/row_stream.h"
#include "tests/data/test_support.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

using Numbers = std::vector<int64_t>;

TEST(LengthGroups, TooManyRowsAreRefusedWithTheRemedy) {
  const int64_t unread = 0;
  const std::span<const int64_t> lengths(&unread, static_cast<size_t>(kMaxTorchRandperm) + 1);
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { length_grouped_order(lengths, 8, 8, 1); }),
      "214748364 rows cannot be grouped by length, at most 214748363: set data.group_by_length = false");
}

TEST(LengthGroups, AreThoseOfXTunersSampler) {
  const Json golden = read_json_file(source_dir() / "tests/golden/data/packing.json")["grouped"];
  ASSERT_GE(golden.size(), 4U);
  for (const Json& test : golden) {
    EXPECT_EQ(length_grouped_order(test["lengths"].get<Numbers>(), test["step"].get<int64_t>(),
                                   test["group"].get<int64_t>(), test["seed"].get<uint64_t>()),
              test["order"].get<Numbers>());
  }
}

TEST(LengthGroups, EveryEpochHasEveryRowOnceInItsOwnOrder) {
  Numbers lengths;
  for (int64_t i = 0; i < 103; ++i) lengths.push_back(i * i % 37);
  const LengthGroupedOrder order(lengths, 8, 5);
  std::set<Numbers> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    Numbers rows;
    for (int64_t i = 0; i < 103; ++i) rows.push_back(order(epoch * 103 + i));
    EXPECT_EQ(rows, length_grouped_order(lengths, 8, 8, 5 + static_cast<uint64_t>(epoch)));
    EXPECT_EQ(std::set(rows.begin(), rows.end()).size(), 103U);
    epochs.insert(rows);
  }
  EXPECT_EQ(epochs.size(), 3U);
}

class GroupedStream : public ::testing::Test {
 protected:
  std::shared_ptr<const RowStream> stream(const StepRows& steps, size_t sources = 1) const {
    return RowStream::mixture(std::vector<WeightedSource>(sources, {.source = rows_}), 3, true, steps);
  }
  /// The average over the steps of the first epoch of the costliest row minus the cheapest one.
  double spread(const RowStream& stream, int64_t step) const {
    int64_t sum = 0;
    for (int64_t first = 0; first + step <= rows_->rows(); first += step) {
      Numbers costs;
      for (int64_t row = first; row < first + step; ++row) costs.push_back(stream.attention_cost(row));
      const auto [low, high] = std::minmax_element(costs.begin(), costs.end());
      sum += *high - *low;
    }
    return static_cast<double>(sum) / static_cast<double>(rows_->rows() / step);
  }

  static Documents documents() {
    Numbers lengths;
    for (int64_t i = 0; i < 300; ++i) lengths.push_back(2 + i * 7919 % 61);
    return counting_documents(lengths);
  }

  TempFolder folder_;
  std::shared_ptr<const RowSource> rows_ =
      std::make_shared<PackedRows>(write_dataset(folder_ / "pair", documents(), TokenType::i32), 64, 100000,
                                   Packing::none, 0, std::nullopt);
};

TEST_F(GroupedStream, RowsOfAStepCostAboutTheSame) {
  const auto grouped = stream({.rows_per_step = 4, .group_by_length = true});
  EXPECT_LT(spread(*grouped, 4), spread(*stream({}), 4) / 4);
  std::set<std::vector<int32_t>> rows;
  for (int64_t row = 0; row < 300; ++row) rows.insert(grouped->rows(row, 1).tokens);
  EXPECT_EQ(rows.size(), 300U);
}

TEST_F(GroupedStream, TheOrderChangesTheFingerprint) {
  const auto print = [&](int64_t rows_per_step, bool grouped) {
    return stream({.rows_per_step = rows_per_step, .group_by_length = grouped})->fingerprint();
  };
  EXPECT_EQ(print(4, false), stream({})->fingerprint());
  EXPECT_NE(print(4, true), print(4, false));
  EXPECT_NE(print(4, true), print(8, true));
}

TEST_F(GroupedStream, NeedsOneSourceAndTheRowsOfAStep) {
  EXPECT_CONTAINS(message_of<UsageError>([&] { stream({.rows_per_step = 4, .group_by_length = true}, 2); }),
                  "the rows of 2 sources cannot be grouped by length");
  EXPECT_CONTAINS(message_of<UsageError>([&] { stream({.group_by_length = true}); }),
                  "set training.global_batch_size");
}

}  // namespace
}  // namespace stepforge::testing
