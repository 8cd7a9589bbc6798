// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/loader.h"

#include <map>
#include <mutex>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "stepforge/data/synthetic.h"
#include "tests/data/numbered_source.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

std::shared_ptr<const RowStream> two_sources(uint64_t seed, bool shuffle = true) {
  return RowStream::mixture({{std::make_shared<NumberedSource>(5000, 0), 3.0},
                             {std::make_shared<NumberedSource>(700, 100000), 1.0}},
                            seed, shuffle);
}

std::shared_ptr<const RowStream> synthetic_stream(uint64_t seed) {
  return RowStream::mixture(
      {{std::make_shared<SyntheticSource>(
            SyntheticOptions{.seed = seed, .vocab_size = 31, .seq_len = 8, .rows = 20, .document_length = 3}),
        1.0},
       {std::make_shared<SyntheticSource>(
            SyntheticOptions{.seed = seed + 1, .vocab_size = 31, .seq_len = 8, .rows = 7}),
        2.0}},
      seed, true);
}

TEST(RowStream, ReturnsEveryRowOncePerEpochOfItsSource) {
  const auto stream = two_sources(9);
  std::map<int32_t, int> first_source, second_source;
  for (int64_t row = 0; row < 20000; ++row) {
    const int32_t token = stream->rows(row, 1).tokens[0];
    ++(token < 100000 ? first_source : second_source)[token];
  }
  // Three in four of 20,000 rows are exactly 3 epochs of 5,000 after whole blocks; here all counts differ by
  // one at most.
  const auto check = [](const std::map<int32_t, int>& counts, size_t rows) {
    ASSERT_EQ(counts.size(), rows);
    int low = counts.begin()->second, high = low;
    for (const auto& [token, count] : counts) {
      low = std::min(low, count);
      high = std::max(high, count);
    }
    EXPECT_LE(high - low, 1);
  };
  check(first_source, 5000);
  check(second_source, 700);
}

TEST(RowStream, AnEpochOfOneSourceIsAPermutationOfItsRows) {
  const auto stream = RowStream::mixture({{std::make_shared<NumberedSource>(101, 0), 1.0}}, 5, true);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const Batch batch = stream->rows(epoch * 101, 101);
    EXPECT_EQ(std::set<int32_t>(batch.tokens.begin(), batch.tokens.end()).size(), 101U);
  }
  EXPECT_NE(stream->rows(0, 101).tokens, stream->rows(101, 101).tokens);
  EXPECT_EQ(stream->rows_per_epoch(), 101);
  EXPECT_EQ(stream->tokens_per_epoch(), 202);
  EXPECT_EQ(stream->total_rows(), std::nullopt);
}

TEST(RowStream, WithoutShufflingKeepsTheOrderOfASource) {
  const Batch batch =
      RowStream::mixture({{std::make_shared<NumberedSource>(3, 0), 1.0}}, 5, false)->rows(0, 4);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 0, 1, 1, 2, 2, 0, 0}));
}

TEST(RowStream, ABatchEqualsItsRowsReadOneByOne) {
  const bool holds = rc::check("rows", [] {
    const auto stream = synthetic_stream(*rc::gen::inRange<uint64_t>(0, 100));
    const int64_t first = *rc::gen::inRange<int64_t>(0, 10000);
    const int64_t count = *rc::gen::inRange<int64_t>(0, 9);
    const Batch batch = stream->rows(first, count);
    RC_ASSERT(batch.rows == count);
    RC_ASSERT(batch.cu_seqlens.front() == 0 && batch.cu_seqlens.back() == count * 8);
    int64_t valid = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Batch one = stream->rows(first + i, 1);
      const auto begin = i * 8;
      RC_ASSERT(std::equal(one.tokens.begin(), one.tokens.end(), batch.tokens.begin() + begin));
      RC_ASSERT(std::equal(one.labels.begin(), one.labels.end(), batch.labels.begin() + begin));
      RC_ASSERT(std::equal(one.positions.begin(), one.positions.end(), batch.positions.begin() + begin));
      for (const int32_t boundary : one.cu_seqlens) {
        RC_ASSERT(std::binary_search(batch.cu_seqlens.begin(), batch.cu_seqlens.end(),
                                     boundary + static_cast<int32_t>(begin)));
      }
      RC_ASSERT(batch.row_ids[static_cast<size_t>(i)] == static_cast<uint64_t>(first + i));
      valid += one.valid_labels;
    }
    RC_ASSERT(batch.valid_labels == valid);
  });
  EXPECT_TRUE(holds);
}

TEST(RowStream, OnePassReturnsAllRowsInOrderAndThenEnds) {
  const auto stream =
      RowStream::one_pass({std::make_shared<NumberedSource>(3, 0), std::make_shared<NumberedSource>(2, 10)});
  EXPECT_EQ(stream->total_rows(), 5);
  EXPECT_EQ(stream->rows(0, 4).tokens, (std::vector<int32_t>{0, 0, 1, 1, 2, 2, 10, 10}));
  const Batch last = stream->rows(4, 4);
  EXPECT_EQ(last.rows, 1);
  EXPECT_EQ(last.tokens, (std::vector<int32_t>{11, 11}));
  EXPECT_EQ(last.cu_seqlens, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(stream->rows(5, 4).rows, 0);
  EXPECT_EQ(stream->rows(500, 4).rows, 0);
}

TEST(RowStream, EachRowKnowsItsSource) {
  const auto numbers = [](int64_t rows, int32_t base) {
    return std::make_shared<NumberedSource>(rows, base);
  };
  const auto stream = RowStream::mixture({{.name = "prose", .source = numbers(50, 0)},
                                          {.name = "code",
                                           .entries = {{.name = "c", .source = numbers(20, 1000)},
                                                       {.name = "java", .source = numbers(20, 2000)}}}},
                                         {.seed = 1});
  EXPECT_EQ(stream->source_names(), (std::vector<std::string>{"prose", "c", "java"}));
  const Batch batch = stream->rows(0, 200);
  ASSERT_EQ(batch.sources.size(), 200U);
  for (size_t row = 0; row < 200; ++row) EXPECT_EQ(batch.sources[row], batch.tokens[2 * row] / 1000);
  EXPECT_EQ(stream->share(0), 0.5);
  EXPECT_EQ(stream->share(1), 0.25);
  EXPECT_EQ(RowStream::one_pass({numbers(1, 0), numbers(1, 1000)})->rows(0, 2).sources,
            (std::vector<int32_t>{0, 1}));
}

TEST(RowStream, AnEpochEndsWithRowsWithoutLabelsThatFillAStep) {
  const std::vector<SourceEntry> entries = {{.name = "a", .source = std::make_shared<NumberedSource>(10, 0)}};
  const auto plain = RowStream::mixture(entries, {.seed = 1});
  const auto filled =
      RowStream::mixture(entries, {.seed = 1}, StepRows{.rows_per_step = 4, .fill_epochs = true});
  EXPECT_EQ(plain->rows_per_epoch(), 10);
  EXPECT_EQ(filled->rows_per_epoch(), 12);
  EXPECT_NE(filled->fingerprint(), plain->fingerprint());
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const Batch rows = filled->rows(epoch * 12, 10);
    EXPECT_EQ(rows.tokens, plain->rows(epoch * 10, 10).tokens);
    EXPECT_EQ(rows.valid_labels, 20);
    const Batch end = filled->rows(epoch * 12 + 8, 4);  // the last step
    EXPECT_EQ(end.valid_labels, 4);
    EXPECT_EQ(end.sources, (std::vector<int32_t>{0, 0, kNoSource, kNoSource}));
    EXPECT_EQ(std::vector<int32_t>(end.labels.begin() + 4, end.labels.end()),
              std::vector<int32_t>(4, kIgnoredLabel));
    EXPECT_EQ(std::vector<int32_t>(end.tokens.begin() + 4, end.tokens.end()), std::vector<int32_t>(4, 0));
    EXPECT_EQ(end.row_ids.back(), static_cast<uint64_t>(epoch * 12 + 11));
  }
  const auto even =
      RowStream::mixture(entries, {.seed = 1}, StepRows{.rows_per_step = 5, .fill_epochs = true});
  EXPECT_EQ(even->fingerprint(), plain->fingerprint()) << "no row is added";
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { RowStream::mixture(entries, {}, StepRows{.fill_epochs = true}); }),
      "for 0 rows a step");
}

TEST(RowStream, ARowThatFillsAStepIsManyShortDocuments) {
  const auto source =
      std::make_shared<SyntheticSource>(SyntheticOptions{.vocab_size = 31, .seq_len = 600, .rows = 1});
  const auto stream = RowStream::mixture({{.name = "a", .source = source}}, {},
                                         StepRows{.rows_per_step = 2, .fill_epochs = true});
  EXPECT_EQ(stream->rows(1, 1).cu_seqlens, (std::vector<int32_t>{0, 256, 512, 600}));
}

TEST(RowStream, TheFingerprintDependsOnSourcesWeightsSeedAndShuffling) {
  const auto source = std::make_shared<NumberedSource>(3, 0);
  const auto other = std::make_shared<NumberedSource>(4, 0);
  const auto print = [&](double weight, uint64_t seed, bool shuffle) {
    return RowStream::mixture({{source, 1.0}, {other, weight}}, seed, shuffle)->fingerprint();
  };
  EXPECT_EQ(print(3, 1, true), RowStream::mixture({{source, 0.5}, {other, 1.5}}, 1, true)->fingerprint());
  EXPECT_NE(print(3, 1, true), print(2, 1, true));
  EXPECT_NE(print(3, 1, true), print(3, 2, true));
  EXPECT_NE(print(3, 1, true), print(3, 1, false));
  EXPECT_NE(print(1, 1, true), RowStream::mixture({{other, 1.0}, {source, 1.0}}, 1, true)->fingerprint());
}

TEST(RowStream, KnowsItsBytesPerToken) {
  const auto known = std::make_shared<NumberedSource>(3, 0);
  EXPECT_EQ(RowStream::one_pass({known})->bytes_per_token(), 3.0);
  const auto unknown = std::make_shared<SyntheticSource>(SyntheticOptions{.vocab_size = 5, .seq_len = 2});
  EXPECT_EQ(RowStream::mixture({{known, 1.0}, {unknown, 1.0}}, 1, true)->bytes_per_token(), std::nullopt);
}

TEST(RowStream, RefusesNoSourceAndNegativeRows) {
  EXPECT_CONTAINS(message_of<UsageError>([] { RowStream::mixture({}, 1, true); }), "no data source");
  EXPECT_CONTAINS(message_of<Error>([] { two_sources(1)->rows(-1, 2); }), "rows [-1");
}

// --- loaders ---

std::vector<Batch> take(Loader& loader, int64_t count) {
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) batches.push_back(loader.next());
  return batches;
}

bool same_batches(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Batch& x, const Batch& y) { return same(x, y); });
}

std::unique_ptr<Loader> make_loader(const std::shared_ptr<const RowStream>& stream, const BatchLayout& layout,
                                    int64_t depth) {
  if (depth == 0) return std::make_unique<Loader>(stream, layout);
  return std::make_unique<PrefetchLoader>(stream, layout, depth);
}

TEST(Loader, ResumesAtAnyPointAsIfUninterrupted) {
  const bool holds = rc::check("cut", [] {
    const auto stream = synthetic_stream(3);
    const BatchLayout layout{.rows_per_step = 6, .rows_per_micro_batch = 2};
    const int64_t cut = *rc::gen::inRange<int64_t>(0, 12);    // steps before the cut
    const int64_t extra = *rc::gen::inRange<int64_t>(0, 3);   // micro-batches of an unfinished step
    const int64_t before = *rc::gen::inRange<int64_t>(0, 4);  // prefetch depths, 0 = none
    const int64_t after = *rc::gen::inRange<int64_t>(0, 4);
    auto whole = make_loader(stream, layout, 0);
    take(*whole, 3 * cut);
    const auto expected = take(*whole, 9);
    auto first = make_loader(stream, layout, before);
    take(*first, 3 * cut + extra);
    const LoaderState state = first->state();
    RC_ASSERT(state.rows_consumed == 6 * cut);
    first.reset();
    auto second = make_loader(stream, layout, after);
    take(*second, *rc::gen::inRange<int64_t>(0, 3));  // restoring discards this position
    second->restore(state, false);
    RC_ASSERT(second->state() == state);
    RC_ASSERT(same_batches(take(*second, 9), expected));
  });
  EXPECT_TRUE(holds);
}

TEST(Loader, AnySplitOverRanksAndMicroBatchesCoversTheSameRowsOfAStep) {
  const auto stream = two_sources(4);
  const auto rows_of_step = [&](int64_t ranks, int64_t local) {
    std::vector<uint64_t> rows;
    std::vector<int32_t> tokens;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Loader loader(
          stream,
          {.rows_per_step = 12, .rows_per_micro_batch = local, .data_ranks = ranks, .data_rank = rank});
      loader.restore({.rows_consumed = 4090, .fingerprint = stream->fingerprint()}, false);
      for (const Batch& batch : take(loader, loader.layout().micro_batches())) {
        rows.insert(rows.end(), batch.row_ids.begin(), batch.row_ids.end());
        tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
      }
      EXPECT_EQ(loader.state().rows_consumed, 4102);
    }
    return std::pair(rows, tokens);
  };
  const auto expected = rows_of_step(1, 12);
  EXPECT_EQ(expected.first.front(), 4090U);
  EXPECT_EQ(expected.first.back(), 4101U);
  for (const auto& [ranks, local] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 4}, {2, 3}, {3, 2}, {3, 4}, {4, 1}, {12, 1}}) {
    EXPECT_EQ(rows_of_step(ranks, local), expected) << ranks << " ranks, " << local << " rows";
  }
}

TEST(Loader, RefusesABatchThatDoesNotDivide) {
  const auto stream = two_sources(4);
  const auto message = [&](const BatchLayout& layout) {
    return message_of<UsageError>([&] { const Loader loader(stream, layout); });
  };
  EXPECT_CONTAINS(message({.rows_per_step = 10, .rows_per_micro_batch = 4}),
                  "training.global_batch_size = 10 cannot be divided: 1 ranks read micro-batches of 4 rows");
  EXPECT_CONTAINS(message({.rows_per_step = 12, .rows_per_micro_batch = 4, .data_ranks = 2}),
                  "2 ranks read micro-batches of 4 rows (training.local_batch_size), 8 rows at once; set "
                  "global_batch_size to 8 or 16");
  EXPECT_CONTAINS(message({.rows_per_step = 0}), "must be positive");
  EXPECT_CONTAINS(message({.rows_per_step = 4, .data_ranks = 2, .data_rank = 2}), "data rank 2 of 2");
}

TEST(Loader, RefusesTheStateOfOtherDataUnlessAllowed) {
  Loader loader(two_sources(4), {.rows_per_step = 2});
  const LoaderState other = Loader(two_sources(5), {.rows_per_step = 2}).state();
  EXPECT_CONTAINS(message_of<UsageError>([&] { loader.restore(other, false); }),
                  "the checkpoint was written with other data");
  loader.restore({.rows_consumed = 8, .fingerprint = other.fingerprint}, true);
  EXPECT_EQ(loader.next().row_ids[0], 8U);
  EXPECT_CONTAINS(
      message_of<FormatError>([&] { loader.restore({.rows_consumed = -1, .fingerprint = ""}, true); }),
      "rows_consumed is -1");
}

TEST(PrefetchLoader, ReturnsTheBatchesOfThePlainLoader) {
  const auto stream = two_sources(4);
  const BatchLayout layout{.rows_per_step = 8, .rows_per_micro_batch = 2, .data_ranks = 2, .data_rank = 1};
  Loader plain(stream, layout);
  const auto expected = take(plain, 50);
  for (const int64_t depth : {1, 2, 16}) {
    PrefetchLoader loader(stream, layout, depth);
    EXPECT_TRUE(same_batches(take(loader, 50), expected)) << depth;
    EXPECT_GE(loader.wait_seconds(), 0.0);
  }
}

TEST(PrefetchLoader, ThrowsAtTheFailedBatchAndOnEveryCallAfterIt) {
  const auto stream = RowStream::mixture({{std::make_shared<NumberedSource>(100, 0, 5), 1.0}}, 1, false);
  PrefetchLoader loader(stream, {.rows_per_step = 1}, 4);
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(loader.next().tokens[0], i);
  EXPECT_EQ(message_of<FormatError>([&] { loader.next(); }), "bad row");
  EXPECT_EQ(message_of<FormatError>([&] { loader.next(); }), "bad row");
  EXPECT_EQ(loader.state().rows_consumed, 5);
  loader.restore({.rows_consumed = 6, .fingerprint = stream->fingerprint()}, false);
  EXPECT_EQ(loader.next().tokens[0], 6);
}

TEST(PrefetchLoader, StopsWithFullAndWithEmptyQueue) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    PrefetchLoader loader(two_sources(4), {.rows_per_step = 4}, 1 + repeat % 3);
    take(loader, repeat % 5);
  }
}

TEST(PrefetchLoader, RefusesADepthOfZero) {
  EXPECT_CONTAINS(message_of<UsageError>([] { PrefetchLoader(two_sources(1), {}, 0); }), "prefetch depth 0:");
}

}  // namespace
}  // namespace stepforge::testing
