// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/packed_rows.h"

#include <numeric>

#include <gtest/gtest.h>

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
                     int64_t seq_len, Packing packing) {
  IndexedDatasetWriter writer(folder / "pairs", {.type = TokenType::u16, .loss_mask = true});
  for (const std::vector<uint8_t>& counted : masks) {
    std::vector<int32_t> tokens(counted.size());
    std::iota(tokens.begin(), tokens.end(), 10);
    writer.add_document(tokens, counted);
  }
  writer.publish();
  return {std::make_shared<IndexedDataset>(folder / "pairs"),
          seq_len,
          100,
          packing,
          0,
          std::nullopt,
          "",
          DocumentKind::pair};
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
