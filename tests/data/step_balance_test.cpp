// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/step_balance.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/random.h"
#include "stepforge/data/concat_rows.h"
#include "stepforge/data/loader.h"
#include "stepforge/data/packed_rows.h"
#include "stepforge/data/synthetic.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

using Numbers = std::vector<int64_t>;

/// Most are small, a few are very large.
Numbers skewed(uint64_t seed, int64_t count, int64_t largest) {
  Numbers numbers;
  for (int64_t i = 0; i < count; ++i) {
    const double part = uniform_float(philox(seed, static_cast<uint64_t>(i))[0]);
    numbers.push_back(1 + static_cast<int64_t>(static_cast<double>(largest) * part * part * part * part));
  }
  return numbers;
}

Numbers in_order(const Numbers& costs, const Numbers& order) {
  Numbers ordered;
  for (const int64_t row : order) ordered.push_back(costs[static_cast<size_t>(row)]);
  return ordered;
}

int64_t sum(std::span<const int64_t> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

TEST(BalancedOrder, IsAPermutationWhoseHalvesDifferByLessThanNeighboursByCost) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const auto count = static_cast<int64_t>(seed % 70);
    const Numbers costs = skewed(seed, count, 10000);
    const Numbers order = balanced_order(costs);
    ASSERT_EQ(std::set(order.begin(), order.end()).size(), costs.size());
    if (count == 0 || count % 2 == 1) continue;
    const Numbers ordered = in_order(costs, order);
    Numbers sorted = costs;
    std::sort(sorted.begin(), sorted.end());
    int64_t gap = 0;
    for (size_t i = 0; i < sorted.size(); i += 2) gap = std::max(gap, sorted[i + 1] - sorted[i]);
    const auto half = static_cast<size_t>(count) / 2;
    const int64_t difference = sum(std::span(ordered).first(half)) - sum(std::span(ordered).subspan(half));
    ASSERT_LE(std::abs(difference), gap) << seed;
  }
}

TEST(BalancedOrder, EvensOutSkewedCostsForEveryNumberOfRanks) {
  for (const int64_t ranks : {2, 3, 4, 6, 8}) {
    double drawn = 0.0;
    double balanced = 0.0;
    double worst = 0.0;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const Numbers costs = skewed(seed, 96, 1 << 20);
      const double imbalance_now = imbalance(in_order(costs, balanced_order(costs)), ranks);
      drawn += imbalance(costs, ranks) / 50;
      balanced += imbalance_now / 50;
      worst = std::max(worst, imbalance_now);
    }
    EXPECT_LT(balanced, drawn / 5) << ranks << " ranks: " << drawn << " to " << balanced;
    EXPECT_LT(worst, 0.2) << ranks;
  }
}

TEST(BalancedOrder, TheCheaperHalfGetsTheCostlierRow) {
  EXPECT_EQ(balanced_order(Numbers{0, 6, 8, 4}), (Numbers{2, 0, 1, 3}));
}

TEST(BalancedOrder, IsDefinedForEqualCostsAndFewRows) {
  const Numbers order = balanced_order(Numbers(4, 7));
  EXPECT_EQ(order, (Numbers{0, 2, 1, 3}));
  EXPECT_EQ(balanced_order(Numbers{}), Numbers{});
  EXPECT_EQ(balanced_order(Numbers{5}), Numbers{0});
}

TEST(Imbalance, IsTheExcessOfTheCostliestBlock) {
  EXPECT_DOUBLE_EQ(imbalance(Numbers{3, 0, 1, 0}, 2), 0.5);
  EXPECT_DOUBLE_EQ(imbalance(Numbers{3, 0, 1, 0}, 1), 0.0);
  EXPECT_DOUBLE_EQ(imbalance(Numbers{0, 0}, 2), 0.0);
}

class BalancedStream : public ::testing::Test {
 protected:
  static constexpr int64_t kStep = 24;

  static std::shared_ptr<const RowSource> packed(const std::filesystem::path& prefix, uint64_t seed) {
    return std::make_shared<PackedRows>(
        write_dataset(prefix, counting_documents(skewed(seed, 200, 1000)), TokenType::i32), 512, 1 << 30,
        Packing::best_fit, 0, std::nullopt);
  }
  std::shared_ptr<const RowStream> stream(bool balance) const {
    return RowStream::mixture({{packed_, 2.0}, {synthetic_, 1.0}}, 3, true,
                              {.rows_per_step = kStep, .balance = balance});
  }
  static Numbers costs_of_step(const RowStream& stream, int64_t step) {
    Numbers costs;
    for (int64_t row = 0; row < kStep; ++row) costs.push_back(stream.attention_cost(step * kStep + row));
    return costs;
  }

  TempFolder folder_;
  std::shared_ptr<const RowSource> packed_ = packed(folder_ / "pair", 1);
  std::shared_ptr<const RowSource> synthetic_ = std::make_shared<SyntheticSource>(
      SyntheticOptions{.vocab_size = 100, .seq_len = 512, .rows = 50, .document_length = 100});
};

TEST_F(BalancedStream, TheWorstRankHasLessToDo) {
  const auto drawn = stream(false);
  const auto balanced = stream(true);
  for (const int64_t ranks : {2, 4, 8}) {
    double before = 0.0;
    double after = 0.0;
    for (int64_t step = 0; step < 20; ++step) {
      before += imbalance(costs_of_step(*drawn, step), ranks);
      after += imbalance(costs_of_step(*balanced, step), ranks);
    }
    EXPECT_LT(after, before / 3) << ranks << ": " << before / 20 << " to " << after / 20;
  }
}

TEST_F(BalancedStream, EveryRowStaysInItsStep) {
  const auto rows_of_step = [](const RowStream& stream, int64_t step) {
    std::multiset<std::vector<int32_t>> rows;
    for (int64_t row = 0; row < kStep; ++row) rows.insert(stream.rows(step * kStep + row, 1).tokens);
    return rows;
  };
  const auto drawn = stream(false);
  const auto balanced = stream(true);
  EXPECT_NE(balanced->rows(0, kStep).tokens, drawn->rows(0, kStep).tokens);
  for (const int64_t step : {5, 0, 1, 17})
    EXPECT_EQ(rows_of_step(*balanced, step), rows_of_step(*drawn, step));
}

TEST_F(BalancedStream, AStepIsTheSameOnAnyNumberOfRanks) {
  const auto balanced = stream(true);
  const Batch whole = balanced->rows(0, 3 * kStep);
  for (const int64_t ranks : {1, 2, 3, 4, 6, 8}) {
    std::vector<int32_t> tokens(whole.tokens.size());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const BatchLayout layout{
          .seq_len = 512, .rows_per_step = kStep, .data_ranks = ranks, .data_rank = rank};
      Loader loader(stream(true), layout);
      for (int64_t i = 0; i < 3 * layout.micro_batches(); ++i) {
        const Batch batch = loader.next();
        std::copy(batch.tokens.begin(), batch.tokens.end(),
                  tokens.begin() + static_cast<std::ptrdiff_t>(batch.row_ids[0] * 512));
      }
    }
    EXPECT_EQ(tokens, whole.tokens) << ranks;
  }
}

TEST_F(BalancedStream, TheOrderChangesTheFingerprint) {
  EXPECT_NE(stream(true)->fingerprint(), stream(false)->fingerprint());
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { RowStream::mixture({{packed_, 1.0}}, 3, true, {.balance = true}); }),
      "rows cannot be ordered by step for 0 rows a step");
}

/// The sum over the documents of a batch of one row.
int64_t cost_of(const Batch& batch) {
  int64_t cost = 0;
  for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    const int64_t length = batch.cu_seqlens[i] - batch.cu_seqlens[i - 1];
    cost += length * length;
  }
  return cost;
}

TEST_F(BalancedStream, TheCostOfARowIsThatOfItsDocuments) {
  const Documents documents = counting_documents({5, 0, 11, 16, 3, 1, 40, 7, 8, 5});
  const auto dataset = write_dataset(folder_ / "other", documents, TokenType::i32);
  const auto concat = std::make_shared<ConcatRows>(dataset, 16, 1000, std::nullopt);
  const std::vector<std::shared_ptr<const RowSource>> sources = {
      packed_,
      synthetic_,
      concat,
      std::make_shared<RowRange>(concat, 2, 3),
      std::make_shared<PackedRows>(dataset, 16, 1000, Packing::hard, 0, std::nullopt),
      std::make_shared<PackedRows>(dataset, 600, 1000, Packing::none, 0, std::nullopt),
      std::make_shared<SyntheticSource>(SyntheticOptions{.vocab_size = 9, .seq_len = 16, .rows = 2})};
  for (const auto& source : sources) {
    Row row;
    for (int64_t number = 0; number < source->rows(); ++number) {
      source->read(number, row);
      Batch batch = empty_batch(source->seq_len(), 1);
      append_row(row, 0, batch);
      ASSERT_EQ(source->attention_cost(number), cost_of(batch)) << source->name() << " " << number;
      ASSERT_EQ(source->RowSource::attention_cost(number), cost_of(batch)) << source->name() << " " << number;
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
