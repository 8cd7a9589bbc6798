// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/source_tree.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "stepforge/data/row_stream.h"
#include "tests/data/numbered_source.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

using Entries = std::vector<SourceEntry>;

SourceEntry source(const std::string& name, int64_t rows, double weight = 1.0) {
  return {.name = name, .source = std::make_shared<NumberedSource>(rows, 0), .weight = weight};
}
SourceEntry counted(const std::string& name, int64_t rows, int64_t tokens, int64_t documents) {
  const auto made = std::make_shared<NumberedSource>(rows, 0);
  made->count(tokens, documents);
  return {.name = name, .source = made};
}
SourceEntry in_epochs(SourceEntry entry, double epochs) {
  entry.epochs = epochs;
  return entry;
}
SourceEntry group(Entries entries, double weight = 1.0, bool concat = false) {
  return {.weight = weight, .concat = concat, .entries = std::move(entries)};
}

/// The average rows of each source in a block or epoch of the tree.
std::vector<double> rows_of(const SourceTree& tree) {
  std::vector<double> rows;
  for (const SourceTree::Leaf& leaf : tree.leaves()) rows.push_back(leaf.rows);
  return rows;
}
std::vector<double> rows_of(const Entries& entries, const MixtureOptions& options = {.seed = 1}) {
  return rows_of(SourceTree(entries, "data.sources", options));
}

using Counts = std::map<std::pair<int64_t, int64_t>, int>;

/// How often each (source, row) is drawn in rows [first, first + count) of the tree.
Counts drawn(const SourceTree& tree, int64_t first, int64_t count) {
  Counts counts;
  for (int64_t row = first; row < first + count; ++row) {
    const RowRef found = tree.locate(row);
    ++counts[{found.source, found.running}];
  }
  return counts;
}

std::string message(const Entries& entries, const MixtureOptions& options = {.seed = 1}) {
  return message_of<UsageError>([&] { const SourceTree tree(entries, "data.sources", options); });
}

TEST(SourceTree, AFlatListHasTheRowsAndFingerprintOfEarlierVersions) {
  for (const bool shuffle : {true, false}) {
    const std::vector<int64_t> rows = {50, 7};
    const Entries entries = {source("a", 50, 3), source("b", 7)};
    const MixtureOptions options{.seed = 9, .shuffle = shuffle};
    const SourceTree tree(entries, "data.sources", options);
    const Mixture mixture({3, 1}, {"a", "b"}, 9);
    for (int64_t row = 0; row < 5000; ++row) {
      const RowRef drawn = mixture.locate(row);
      const RowOrder order(rows[static_cast<size_t>(drawn.source)], 9, drawn.source, shuffle);
      const RowRef found = tree.locate(row);
      ASSERT_EQ(found.source, drawn.source) << row;
      ASSERT_EQ(found.running, order(drawn.running)) << row;
    }
    EXPECT_EQ(tree.rows_per_epoch(), 57);
    EXPECT_EQ(RowStream::mixture(entries, options)->fingerprint(),
              content_hash(format("mixture seed 9 shuffle {} seq_len 2\nnumbers 50 0\nnumbers 7 0 3072 1024",
                                  shuffle)));
  }
}

TEST(SourceTree, AGroupHasItsShareAndDividesItAmongItsSources) {
  const Entries nested = {source("a", 10, 3),
                          group({source("b", 10), group({source("c", 10, 3), source("d", 10)}, 3)})};
  EXPECT_EQ(rows_of(nested), (std::vector<double>{3072, 256, 576, 192}));
  const SourceTree tree(nested, "data.sources", {.seed = 1});
  std::map<int64_t, int64_t> counts;
  constexpr int64_t kBlocks = 16;  // whole blocks of the mixtures inside, too
  for (int64_t row = 0; row < kBlocks * Mixture::kBlockRows; ++row) ++counts[tree.locate(row).source];
  EXPECT_EQ(counts[0], kBlocks * 3072);
  EXPECT_EQ(counts[1], kBlocks * 256);
  EXPECT_EQ(counts[2], kBlocks * 576);
  EXPECT_EQ(counts[3], kBlocks * 192);
}

TEST(SourceTree, EachGroupIsShuffledInItsOwnWay) {
  const Entries entries = {group({source("a", 10), source("b", 10)}),
                           group({source("c", 10), source("d", 10)})};
  const SourceTree tree(entries, "data.sources", {.seed = 1});
  std::vector<int64_t> outer, first, second;  // which of its two entries comes when, per list
  for (int64_t row = 0; row < 200; ++row) {
    const int64_t leaf = tree.locate(row).source;
    outer.push_back(leaf / 2);
    (leaf < 2 ? first : second).push_back(leaf % 2);
  }
  for (std::vector<int64_t>* choices : {&outer, &first, &second}) choices->resize(50);
  EXPECT_NE(first, second);
  EXPECT_NE(first, outer);
  EXPECT_NE(second, outer);
}

TEST(SourceTree, AConcatGroupHasEachRowOnceInAnEpoch) {
  const Entries entries = {group({source("a", 30), source("b", 3)}, 1, /*concat=*/true)};
  const SourceTree tree(entries, "data.sources", {.seed = 1});
  EXPECT_EQ(tree.rows_per_epoch(), 33);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const Counts counts = drawn(tree, epoch * 33, 33);
    EXPECT_EQ(counts.size(), 33U) << "each of the rows of both, once";
  }
  int among_the_first = 0;  // shuffled as one
  for (int64_t row = 0; row < 30; ++row) among_the_first += tree.locate(row).source == 1 ? 1 : 0;
  EXPECT_GT(among_the_first, 0);
  EXPECT_NE(drawn(tree, 0, 10), drawn(tree, 33, 10));
}

TEST(SourceTree, AConcatGroupKeepsItsOrderWithoutShuffling) {
  const Entries entries = {group({source("a", 2), source("b", 1)}, 1, /*concat=*/true)};
  const SourceTree tree(entries, "data.sources", {.seed = 1, .shuffle = false});
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (int64_t row = 0; row < 6; ++row) {
    const RowRef found = tree.locate(row);
    rows.emplace_back(found.source, found.running);
  }
  EXPECT_EQ(rows, (std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 1}, {1, 0}, {0, 0}, {0, 1}, {1, 0}}));
}

TEST(SourceTree, EpochsRepeatASourceExactly) {
  const Entries entries = {in_epochs(source("once", 20), 1), in_epochs(source("half", 10), 0.5),
                           in_epochs(source("thrice", 4), 3)};
  const SourceTree tree(entries, "data.sources", {.seed = 1});
  EXPECT_EQ(tree.rows_per_epoch(), 20 + 5 + 12);
  EXPECT_EQ(rows_of(tree), (std::vector<double>{20, 5, 12}));
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    Counts expected;
    for (int64_t row = 0; row < 20; ++row) expected[{0, row}] = 1;
    for (int64_t row = 0; row < 4; ++row) expected[{2, row}] = 3;
    Counts counts = drawn(tree, epoch * 37, 37);
    std::erase_if(counts, [](const auto& entry) { return entry.first.first == 1; });
    EXPECT_EQ(counts, expected);
  }
  for (const int64_t pair : {0, 1}) {
    Counts of_two = drawn(tree, pair * 74, 74);  // half an epoch, twice: each row once
    std::erase_if(of_two, [](const auto& entry) { return entry.first.first != 1; });
    EXPECT_EQ(of_two.size(), 10U);
  }
}

TEST(SourceTree, EpochsOfAGroupRepeatItsEpoch) {
  const Entries entries = {in_epochs(group({in_epochs(source("a", 5), 2), in_epochs(source("b", 3), 1)}), 2),
                           in_epochs(source("c", 4), 1)};
  const SourceTree tree(entries, "data.sources", {.seed = 1});
  EXPECT_EQ(tree.rows_per_epoch(), 2 * 13 + 4);
  const std::vector<int> times = {4, 2, 1};
  for (const auto& [row, count] : drawn(tree, 0, 30)) EXPECT_EQ(count, times[static_cast<size_t>(row.first)]);
}

TEST(SourceTree, WeightsMayBeSharesOfTokensOrSamples) {
  // Rows of "a" are half padding, and have 4 documents; those of "b" are full and have 1.
  const Entries entries = {counted("a", 100, 100, 400), counted("b", 100, 200, 100)};
  EXPECT_EQ(rows_of(entries), (std::vector<double>{2048, 2048}));
  const auto by = [&](ShareOf what) { return rows_of(entries, {.seed = 1, .weights_by = what}); };
  EXPECT_EQ(by(ShareOf::tokens), (std::vector<double>{2731, 1365}))
      << "two rows of a hold what one of b holds";
  EXPECT_EQ(by(ShareOf::samples), (std::vector<double>{819, 3277})) << "a row of a holds what four of b hold";
  // Tokens after the last full row are in no row.
  const Entries beyond = {counted("a", 1, 3, 1), counted("b", 1, 2, 1)};
  EXPECT_EQ(rows_of(beyond, {.seed = 1, .weights_by = ShareOf::tokens}), (std::vector<double>{2048, 2048}));
}

TEST(SourceTree, AGroupCountsByTheAverageOfItsRows) {
  const Entries concat = {
      group({counted("a", 300, 300, 300), counted("b", 100, 200, 100)}, 1, /*concat=*/true),
      counted("c", 100, 200, 100)};  // rows of the group have 1.25 tokens
  const std::vector<double> rows = rows_of(concat, {.seed = 1, .weights_by = ShareOf::tokens});
  EXPECT_EQ(rows[2], std::round(4096.0 * 1.25 / 3.25));
  const Entries mixed = {group({counted("a", 100, 100, 400), counted("b", 100, 200, 100)}, 3),
                         counted("c", 100, 200, 100)};  // three in four documents, of rows that have 2.5, 1.6
  const double per_row = (819.0 * 4 + 3277.0) / 4096.0;
  EXPECT_EQ(rows_of(mixed, {.seed = 1, .weights_by = ShareOf::samples})[2],
            std::round(4096.0 / (1.0 + 3.0 / per_row)));
}

TEST(SourceTree, TemperatureFlattensTheSharesOfTokens) {
  const Entries entries = {counted("large", 900, 1600, 900), counted("small", 10, 100, 10)};
  const auto at = [&](double temperature) {
    return rows_of(entries, {.seed = 1, .temperature = temperature});
  };
  EXPECT_EQ(at(0), (std::vector<double>{2048, 2048}));
  EXPECT_EQ(at(1)[1], std::round(4096.0 / 17.0));
  EXPECT_EQ(at(2)[1], std::round(4096.0 / 5.0));
  EXPECT_EQ(at(4)[1], std::round(4096.0 / 3.0));
  // Weights that are set stay, in their own list.
  Entries weighted = entries;
  weighted[0].weight = 3;
  EXPECT_EQ(rows_of(weighted, {.seed = 1, .temperature = 2}), (std::vector<double>{3072, 1024}));
  const Entries nested = {group(entries, 3), source("other", 10)};
  EXPECT_EQ(rows_of(nested, {.seed = 1, .temperature = 2})[1], 3072.0 * 819 / 4096);
}

TEST(SourceTree, TheIdentityDependsOnTheTree) {
  const auto identity = [](const Entries& entries) {
    return SourceTree(entries, "data.sources", {.seed = 1}).identity();
  };
  const Entries two = {source("a", 5), source("b", 6)};
  EXPECT_EQ(identity({group(two), source("c", 7)}),
            identity({group({source("other name", 5, 2), source("b", 6, 2)}), source("c", 7)}));
  EXPECT_NE(identity(two), identity({group(two)}));
  EXPECT_NE(identity({group(two)}), identity({group(two, 1, /*concat=*/true)}));
  EXPECT_NE(identity({group(two), source("c", 7)}),
            identity({source("a", 5), group({source("b", 6), source("c", 7)})}));
  EXPECT_NE(identity(two), identity({in_epochs(source("a", 5), 1), in_epochs(source("b", 6), 1)}));
}

TEST(SourceTree, NamesTheEntryOfAShareThatIsNoPositiveNumber) {
  const auto in_group = [](const SourceEntry& entry) {
    return message({source("a", 5), group({entry, source("c", 5)})});
  };
  EXPECT_CONTAINS(
      in_group(source("b", 5, 0)),
      "data.sources.1.sources.0 (b): weight 0 is not a positive number; to not use the source, leave "
      "it out");
  EXPECT_CONTAINS(in_group(source("b", 5, -1)), "data.sources.1.sources.0 (b): weight -1 is not");
  EXPECT_CONTAINS(in_group(source("b", 5, std::nan(""))), "data.sources.1.sources.0 (b): weight nan is not");
  EXPECT_CONTAINS(
      message({in_epochs(source("a", 5), 1), in_epochs(source("b", 5), 0)}),
      "data.sources.1 (b): epochs 0 is not a positive number; to not use the source, leave it out");
  EXPECT_CONTAINS(message({in_epochs(source("a", 5), -2)}), "data.sources.0 (a): epochs -2 is not");
  EXPECT_CONTAINS(message({in_epochs(source("a", 5), std::nan(""))}), "epochs nan is not");
  EXPECT_CONTAINS(message({in_epochs(source("a", 5), 1e300)}),
                  "data.sources.0 (a): epochs 1e+300 makes an epoch of 5e+300 rows");
  EXPECT_CONTAINS(message({source("a", 5)}, {.temperature = -1}), "temperature -1: it must be");
  EXPECT_CONTAINS(message({source("a", 5)}, {.temperature = std::nan("")}), "temperature nan: it must be");
}

TEST(SourceTree, NamesTheEntryOfAShareThatRoundsToNoRow) {
  EXPECT_CONTAINS(
      message({group({source("a", 5, 1e6), source("b", 5)})}),
      "data.sources.0.sources.1 (b): weight 1 of a total of 1000001 is 0.0041 rows in each block of "
      "4096, which rounds to 0; raise the weight (or the temperature that sets it) so that its share "
      "is 244 times as large");
  EXPECT_CONTAINS(message({in_epochs(source("a", 5), 1), in_epochs(source("b", 20), 0.01)}),
                  "data.sources.1 (b): epochs 0.01 of 20 rows rounds to no row; set epochs to at least 0.05");
}

TEST(SourceTree, RefusesAListThatHasWeightsAndEpochs) {
  EXPECT_CONTAINS(message({in_epochs(source("a", 5), 1), source("b", 5)}),
                  "data.sources.1 (b) has no epochs, but a list of sources has either weights or epochs");
  EXPECT_CONTAINS(message({in_epochs(source("a", 5, 2), 1)}),
                  "data.sources.0 (a) has both epochs and a weight");
  EXPECT_CONTAINS(
      message({group({source("a", 5), source("b", 5, 2)}, 1, /*concat=*/true)}),
      "data.sources.0.sources.1 (b): the sources of a group with combine = \"concat\" are read once "
      "each; remove weight");
  EXPECT_CONTAINS(message({group({in_epochs(source("a", 5), 2)}, 1, /*concat=*/true)}), "remove epochs");
}

TEST(SourceTree, RefusesEmptySourcesAndGroups) {
  EXPECT_CONTAINS(message({source("a", 5), source("b", 0)}), "data.sources.1 (b): the source has no rows");
  EXPECT_CONTAINS(message({}), "data.sources: no data source is given");
  EXPECT_CONTAINS(message({source("a", 5), group({})}), "data.sources.1.sources: no data source is given");
  EXPECT_CONTAINS(
      message({counted("a", 5, 0, 0), source("b", 5)}, {.seed = 1, .weights_by = ShareOf::samples}),
      "data.sources.0 (a): the source has no samples");
}

TEST(SourceTree, RefusesGroupsThatAreNestedTooDeep) {
  SourceEntry nested = source("a", 5);
  for (int depth = 0; depth < SourceTree::kMaxDepth; ++depth) nested = group({nested});
  EXPECT_EQ(SourceTree({nested}, "data.sources", {}).leaves().size(), 1U);
  EXPECT_CONTAINS(message({group({nested})}), "sources are nested more than 8 deep");
}

}  // namespace
}  // namespace stepforge::testing
