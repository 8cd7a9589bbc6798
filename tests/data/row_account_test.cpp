// SPDX-License-Identifier: Apache-2.0
// Documents without a label are left out, and everything that rows hold or lose is counted.
#include "stepforge/data/row_account.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "stepforge/data/concat_rows.h"
#include "stepforge/data/packed_rows.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

/// A question of `question` tokens and an answer of `answer`, of which only the answer counts.
struct Talk {
  int64_t question = 0;
  int64_t answer = 0;
};

std::shared_ptr<const IndexedDataset> talks(const TempFolder& folder, const std::vector<Talk>& list) {
  IndexedDatasetWriter writer(folder / "pair", {.type = TokenType::u16, .loss_mask = true});
  for (const auto& [question, answer] : list) {
    std::vector<uint8_t> counted(static_cast<size_t>(question), 0);
    counted.resize(static_cast<size_t>(question + answer), 1);
    writer.add_document(std::vector<int32_t>(counted.size(), 7), counted);
  }
  writer.publish();
  return std::make_shared<IndexedDataset>(folder / "pair");
}

constexpr std::array kWholeDocuments = {Packing::soft, Packing::best_fit, Packing::none, Packing::budget};
constexpr std::array kAll = {Packing::soft,   Packing::best_fit, Packing::none,
                             Packing::budget, Packing::hard,     Packing::concat};

std::shared_ptr<const RowSource> rows_of(const std::shared_ptr<const IndexedDataset>& dataset,
                                         int64_t seq_len, Packing packing) {
  if (packing == Packing::concat)
    return std::make_shared<ConcatRows>(dataset, seq_len, 100, std::nullopt, "s");
  return std::make_shared<PackedRows>(dataset, seq_len, 100, packing, 0, std::nullopt, "s");
}

/// The account of a batch of all rows, as far as a batch tells.
void expect_true(const RowSource& rows, Packing packing) {
  const Batch batch = batch_of(rows);
  const RowAccount& account = *rows.account();
  EXPECT_EQ(account.rows, rows.rows());
  EXPECT_EQ(account.labels, batch.valid_labels) << static_cast<int>(packing);
  EXPECT_EQ(account.tokens, batch.real_tokens) << static_cast<int>(packing);
  EXPECT_EQ(account.tokens + account.padding, batch.rows * batch.seq_len);
  int64_t unlabelled = 0;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const auto first = batch.labels.begin() + row * batch.seq_len;
    unlabelled += std::count(first, first + batch.seq_len, kIgnoredLabel) == batch.seq_len ? 1 : 0;
  }
  EXPECT_EQ(account.unlabelled_rows, unlabelled) << static_cast<int>(packing);
}

TEST(RowAccount, IsThatOfTheBatchesInEveryPacking) {
  const TempFolder folder;
  const auto dataset =
      talks(folder, {{3, 2}, {12, 3}, {8, 1}, {9, 4}, {1, 1}, {0, 6}, {30, 2}, {2, 20}, {5, 0}, {1, 0}});
  for (const Packing packing : kAll) expect_true(*rows_of(dataset, 8, packing), packing);
  const TempFolder plain;
  const auto text = write_dataset(plain / "pair", counting_documents({5, 1, 13, 8, 2, 9, 1}));
  for (const Packing packing : kAll) expect_true(*rows_of(text, 8, packing), packing);
}

TEST(RowAccount, DocumentsWithoutALabelInARowAreLeftOutAndCounted) {
  const TempFolder folder;
  // Rows of 8: the label of the eighth token is the ninth, so the second talk has one and the third has none.
  const auto dataset = talks(folder, {{3, 2}, {8, 5}, {9, 5}, {4, 0}});
  for (const Packing packing : kWholeDocuments) {
    const auto rows = rows_of(dataset, 8, packing);
    const RowAccount& account = *rows->account();
    EXPECT_EQ(account.unlabelled_documents, 2) << static_cast<int>(packing);
    EXPECT_EQ(account.unlabelled_tokens, 14 + 4);
    EXPECT_EQ(account.documents, 2);
    EXPECT_EQ(account.cut_documents, 1);
    EXPECT_EQ(account.cut_tokens, 5);
    EXPECT_EQ(account.unlabelled_rows, 0);
    EXPECT_EQ(account.labels, 3);
  }
}

TEST(RowAccount, ADataSetWithoutAnyLabelIsRefusedInEveryPacking) {
  const TempFolder folder;
  const auto none = talks(folder, {{20, 0}, {30, 0}});
  for (const Packing packing : kAll) {
    const std::string message = message_of<UsageError>([&] { rows_of(none, 8, packing); });
    EXPECT_CONTAINS(message, "s: none of its 2 documents has a label in a row of 8 tokens");
  }
  const TempFolder other;
  const auto cut = talks(other, {{20, 3}, {30, 2}});
  for (const Packing packing : kWholeDocuments)
    EXPECT_CONTAINS(message_of<UsageError>([&] { rows_of(cut, 8, packing); }), "proportional");
  EXPECT_EQ(rows_of(cut, 8, Packing::concat)->account()->labels, 3)
      << "the second answer is after the last full row";
}

TEST(RowAccount, RowsWithoutSuchDocumentsKeepTheirFingerprint) {
  const TempFolder folder;
  const auto dataset = write_dataset(folder / "pair", counting_documents({3, 2, 4}));
  const PackedRows rows(dataset, 4, 100, Packing::none, 0, std::nullopt);
  EXPECT_EQ(rows.fingerprint(), content_hash(format("rows {} 4 4 0", dataset->content_key())));
}

TEST(RowAccount, CountsConversationsThatRowsDivide) {
  const TempFolder folder;
  const auto dataset = talks(folder, {{2, 3}, {2, 4}, {1, 2}, {3, 5}});
  const RowAccount account = *rows_of(dataset, 8, Packing::concat)->account();
  EXPECT_EQ(account.divided_documents, 2) << "the second at 8, the fourth at the end of the last full row";
  const auto notes = account_notes(account, "conversation", 8);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_CONTAINS(notes[0], "2 of 4 conversations are cut at the ends of rows",
                  "data.packing = \"best_fit\"");
  EXPECT_TRUE(account_notes(account, "document", 8).empty()) << "text is cut by design";
}

}  // namespace
}  // namespace stepforge::testing
