// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/packed_rows.h"

#include <memory>
#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/data/concat_rows.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

PackedRows rows_of(const TempFolder& folder, const Documents& documents, int64_t seq_len, Packing packing) {
  return {
      write_dataset(folder / "pair", documents, TokenType::i32), seq_len, 100000, packing, 0, std::nullopt};
}

TEST(PackedRows, PadsRowsAndCountsNoPadding) {
  const TempFolder folder;
  const Batch batch = batch_of(rows_of(folder, {{11, 12, 13}, {21, 22}}, 4, Packing::none));
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{11, 12, 13, 0, 21, 22, 0, 0}));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{12, 13, -100, -100, 22, -100, -100, -100}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 3, 4, 6, 8}));
  EXPECT_EQ(batch.valid_labels, 3);
}

TEST(PackedRows, ThePaddingIsDividedIntoShortDocuments) {
  const TempFolder folder;
  const Batch batch = batch_of(rows_of(folder, {{11, 12}}, 600, Packing::none));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 2, 258, 514, 600}));
  EXPECT_EQ(batch.max_document_length, 256);
}

TEST(PackedRows, TheLastLabelOfACutDocumentIsItsNextToken) {
  const TempFolder folder;
  const Batch batch = batch_of(rows_of(folder, {{11, 12, 13, 14, 15, 16}}, 4, Packing::none));
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{11, 12, 13, 14}));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{12, 13, 14, 15}));
}

TEST(PackedRows, TheBytesAreThoseOfTheTokensThatAreUsed) {
  const TempFolder folder;
  const auto dataset = write_dataset(folder / "pair", {{11, 12, 13, 14, 15, 16}, {21, 22}});
  const PackedRows cut(dataset, 4, 100, Packing::none, 0, /*text_bytes=*/40);
  EXPECT_EQ(cut.tokens(), 6);
  EXPECT_EQ(cut.text_bytes(), 30) << "two of eight tokens are lost";
  EXPECT_EQ(PackedRows(dataset, 6, 100, Packing::none, 0, 40).text_bytes(), 40);
  EXPECT_EQ(PackedRows(dataset, 4, 100, Packing::none, 0, std::nullopt).text_bytes(), std::nullopt);
}

TEST(PackedRows, TheLastLabelOfAFullRowIsIgnoredIfItsDocumentEnds) {
  const TempFolder folder;
  const Batch batch = batch_of(rows_of(folder, {{11, 12}, {21, 22}}, 4, Packing::best_fit));
  ASSERT_EQ(batch.rows, 1);
  EXPECT_EQ(batch.labels[1], kIgnoredLabel);
  EXPECT_EQ(batch.labels[3], kIgnoredLabel);
  EXPECT_EQ(batch.valid_labels, 2);
}

/// Documents of a prompt and an answer, twice; the answers count.
PackedRows pair_rows(const TempFolder& folder, const std::vector<std::vector<uint8_t>>& masks,
                     int64_t seq_len, Packing packing, DocumentKind kind = DocumentKind::pair) {
  IndexedDatasetWriter writer(folder / "pairs", {.type = TokenType::u16, .loss_mask = true});
  for (const std::vector<uint8_t>& counted : masks) {
    std::vector<int32_t> tokens(counted.size());
    std::iota(tokens.begin(), tokens.end(), 10);
    writer.add_document(tokens, counted);
  }
  writer.publish();
  return {
      std::make_shared<IndexedDataset>(folder / "pairs"), seq_len, 100, packing, 0, std::nullopt, "", kind};
}

TEST(PackedRows, APairIsTwoDocumentsOfOneRow) {
  const TempFolder folder;
  const PackedRows rows = pair_rows(folder, {{0, 1, 1, 0, 1}, {0, 0, 1, 0, 0, 1}}, 12, Packing::best_fit);
  ASSERT_EQ(rows.rows(), 1);
  Row row;
  rows.read(0, row);
  // The longer pair comes first.
  EXPECT_EQ(row.pairs, (std::vector<RowPair>{{.number = 1, .begin = 0, .middle = 3, .end = 6},
                                             {.number = 0, .begin = 6, .middle = 9, .end = 11}}));
  EXPECT_EQ(row.document_starts, (std::vector<int32_t>{3, 6, 9, 11}));
  EXPECT_EQ(rows.attention_cost(0), 3 * 3 * 3 + 2 * 2 + 1);
  EXPECT_EQ(rows.pairs(), 2);
  EXPECT_EQ(rows_of(folder, {{1, 2}}, 4, Packing::none).pairs(), 0);
}

/// An undesirable answer, whose first token counts, is the second one of its pair.
TEST(PackedRows, AJudgedAnswerIsOneDocumentOfItsRow) {
  const TempFolder folder;
  const PackedRows rows =
      pair_rows(folder, {{0, 1, 1}, {1, 0, 0, 1}}, 12, Packing::best_fit, DocumentKind::answer);
  ASSERT_EQ(rows.rows(), 1);
  Row row;
  rows.read(0, row);
  EXPECT_EQ(row.pairs, (std::vector<RowPair>{{.number = 1, .begin = 0, .middle = 0, .end = 4},
                                             {.number = 0, .begin = 4, .middle = 7, .end = 7}}));
  EXPECT_EQ(row.document_starts, (std::vector<int32_t>{4, 7}));
  EXPECT_EQ(rows.account()->labels, 3);
  const Batch batch = batch_of(rows);
  EXPECT_EQ(batch.pairs[0].answers, (std::array{Answer{0, 0, 0}, Answer{0, 4, 1}}));
  EXPECT_EQ(batch.pairs[1].answers, (std::array{Answer{4, 7, 2}, Answer{7, 7, 0}}));
  EXPECT_EQ(batch.valid_labels, 3) << "the mark of an undesirable answer is no label";
  EXPECT_EQ(batch.loss_weight(), 2.0);
}

/// Prompts of 1, 2 and 1 tokens, answers of 2, 1 and 4.
TEST(PackedRows, MismatchedAnswersAreThoseOfTheRecordBefore) {
  const TempFolder folder;
  const PackedRows rows =
      pair_rows(folder, {{0, 1, 1}, {1, 0, 1}, {0, 1, 1, 1, 1}}, 5, Packing::none, DocumentKind::answer);
  ASSERT_EQ(rows.rows(), 3);
  const auto read = [&](int64_t number) {
    Row row;
    rows.read_mismatched(number, row);
    EXPECT_EQ(row.pairs.size(), 1U);
    EXPECT_EQ(row.pairs[0].number, number);
    row.tokens.resize(static_cast<size_t>(row.pairs[0].end));
    row.counted.resize(row.tokens.size());
    return row;
  };
  const Row first = read(0);
  EXPECT_EQ(first.tokens, (std::vector<int32_t>{10, 11, 12, 13, 14})) << "the answer of the last record";
  EXPECT_EQ(first.counted, (std::vector<uint8_t>{0, 1, 1, 1, 1}));
  EXPECT_EQ(first.pairs[0].middle, 5) << "desirable, as the answer of its own";
  const Row second = read(1);
  EXPECT_EQ(second.tokens, (std::vector<int32_t>{10, 11, 11, 12}));
  EXPECT_EQ(second.counted, (std::vector<uint8_t>{0, 0, 1, 1}));
  EXPECT_EQ(second.pairs[0].middle, 0);
  EXPECT_EQ(read(2).tokens, (std::vector<int32_t>{10, 12}));
}

/// Also where the answers of others are longer; one that fits into no row is cut.
TEST(PackedRows, RowsHaveRoomForMismatchedAnswers) {
  const TempFolder folder;
  const PackedRows rows =
      pair_rows(folder, {{0, 0, 0, 1}, {0, 0, 0, 1}, {0, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 1}}, 8,
                Packing::best_fit, DocumentKind::answer);
  int64_t answers = 0;
  for (int64_t number = 0; number < rows.rows(); ++number) {
    Row own;
    Row other;
    rows.read(number, own);
    rows.read_mismatched(number, other);
    ASSERT_EQ(own.pairs.size(), other.pairs.size());
    for (size_t i = 0; i < own.pairs.size(); ++i) EXPECT_EQ(own.pairs[i].number, other.pairs[i].number);
    EXPECT_LE(other.pairs.back().end, 8);
    EXPECT_EQ(other.tokens.size(), 9U);
    if (own.pairs[0].number == 3) {
      EXPECT_EQ(other.pairs[0].end, 8) << "3 + 7 tokens are cut";
    }
    answers += std::ssize(own.pairs);
  }
  EXPECT_EQ(answers, 4);
}

TEST(RowRange, HasTheMismatchedAnswersOfTheWhole) {
  const TempFolder folder;
  const PackedRows rows =
      pair_rows(folder, {{0, 1, 1}, {1, 0, 1}, {0, 1, 1, 1, 1}}, 5, Packing::none, DocumentKind::answer);
  const RowRange last({&rows, [](const RowSource*) {}}, 1, 2);
  Row expected;
  Row found;
  rows.read_mismatched(2, expected);
  last.read_mismatched(1, found);
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.pairs.at(0).number, 2);
}

TEST(PackedRows, OtherRowsHaveNoMismatchedAnswers) {
  const TempFolder folder;
  Row row;
  EXPECT_THROW(rows_of(folder, {{1, 2}}, 4, Packing::none).read_mismatched(0, row), Error);
}

TEST(PackedRows, ADocumentThatIsNoPairIsRefused) {
  for (const std::vector<uint8_t>& counted :
       {std::vector<uint8_t>{0, 1, 1}, std::vector<uint8_t>{0, 1, 0}, std::vector<uint8_t>{0, 1, 0, 1, 0}}) {
    const TempFolder folder;
    const PackedRows rows = pair_rows(folder, {counted}, 8, Packing::none);
    Row row;
    EXPECT_CONTAINS(message_of<FormatError>([&] { rows.read(0, row); }),
                    "document 0 of the data set is no pair");
  }
}

TEST(PackedRows, KeepsTheLossMaskOfItsDataset) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "pair", {.type = TokenType::u16, .loss_mask = true});
  writer.add_document(std::vector<int32_t>{11, 12, 13, 14}, std::vector<uint8_t>{0, 0, 1, 1});
  writer.add_document(std::vector<int32_t>{21, 22}, std::vector<uint8_t>{0, 1});
  writer.publish();
  const auto dataset = std::make_shared<IndexedDataset>(folder / "pair");
  const Batch batch = batch_of(PackedRows(dataset, 4, 100, Packing::none, 0, std::nullopt));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{-100, 13, 14, -100, 22, -100, -100, -100}));
}

TEST(PackedRows, RefusesADatasetWithoutAFullRow) {
  const TempFolder folder;
  EXPECT_CONTAINS(message_of<UsageError>([&] { rows_of(folder, {{1, 2, 3}}, 4, Packing::hard); }),
                  "holds 3 tokens, too few for one row of 4 tokens");
}

TEST(PackedRows, TheFingerprintKnowsPackingLengthAndSeed) {
  const TempFolder folder;
  const auto dataset = write_dataset(folder / "pair", counting_documents({3, 2, 4}));
  const auto print = [&](int64_t seq_len, Packing packing, uint64_t seed) {
    return PackedRows(dataset, seq_len, 100, packing, seed, std::nullopt).fingerprint();
  };
  EXPECT_NE(print(4, Packing::soft, 1), print(5, Packing::soft, 1));
  EXPECT_NE(print(4, Packing::soft, 1), print(4, Packing::best_fit, 1));
  EXPECT_NE(print(4, Packing::soft, 1), print(4, Packing::soft, 2));
}

}  // namespace
}  // namespace stepforge::testing
