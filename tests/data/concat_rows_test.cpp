// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/concat_rows.h"

#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "stepforge/base/files.h"
#include "stepforge/data/row_stream.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

std::shared_ptr<const ConcatRows> packed(const TempFolder& folder, const Documents& documents,
                                         int64_t seq_len, int64_t vocab_size = 100000) {
  return std::make_shared<ConcatRows>(write_dataset(folder / "pair", documents, TokenType::i32), seq_len,
                                      vocab_size, std::nullopt);
}

// Finds what went wrong in torchtitan#4075: the last token of a document predicts the next document.
TEST(ConcatRows, ConcatenatesDocumentsAndCutsThemIntoRows) {
  const TempFolder folder;
  const auto source = packed(folder, counting_documents({3, 4, 6}), 4);
  ASSERT_EQ(source->rows(), 3);
  const Batch batch = batch_of(*source);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{1, 2, -100, 4, 5, 6, -100, 8, 9, 10, 11, 12}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 3}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 3, 4, 7, 8, 12}));
  EXPECT_EQ(batch.max_document_length, 4);
  EXPECT_EQ(batch.valid_labels, 10);
  EXPECT_EQ(batch.row_ids, (std::vector<uint64_t>{0, 1, 2}));
}

TEST(ConcatRows, IgnoresTheLastLabelOfARowIfTheNextRowBeginsADocument) {
  const TempFolder folder;
  const Batch batch = batch_of(*packed(folder, counting_documents({4, 5}), 4));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{1, 2, 3, -100, 5, 6, 7, 8}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 4, 8}));
}

TEST(ConcatRows, NTokensMakeFloorOfNMinus1OverTRows) {
  for (const int64_t count : {5, 8, 9, 12, 13}) {
    const TempFolder folder;
    EXPECT_EQ(packed(folder, counting_documents({count}), 4)->rows(), (count - 1) / 4) << count;
  }
}

TEST(ConcatRows, TokensLabelsPositionsAndBoundariesAgree) {
  const bool holds = rc::check("packing", [] {
    auto lengths = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 9));
    lengths.insert(lengths.begin(), 2);  // so that the first token has a label
    const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t seq_len = *rc::gen::inRange<int64_t>(1, std::min<int64_t>(total, 12));
    const TempFolder folder;
    const auto source = packed(folder, counting_documents(lengths), seq_len);
    const Batch batch = batch_of(*source);
    // The document of each token, straight from the lengths.
    std::vector<int64_t> document;
    for (size_t d = 0; d < lengths.size(); ++d)
      document.insert(document.end(), static_cast<size_t>(lengths[d]), static_cast<int64_t>(d));
    std::vector<int32_t> boundaries = {0};
    int64_t valid = 0;
    int32_t longest = 0;
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      const bool row_begins = i % static_cast<size_t>(seq_len) == 0;
      const bool part_begins = row_begins || document[i] != document[i - 1];
      if (part_begins && i > 0) boundaries.push_back(static_cast<int32_t>(i));
      const bool last = document[i] != document[i + 1];
      valid += last ? 0 : 1;
      RC_ASSERT(batch.tokens[i] == static_cast<int32_t>(i));
      RC_ASSERT(batch.labels[i] == (last ? -100 : static_cast<int32_t>(i) + 1));
      RC_ASSERT(batch.positions[i] == static_cast<int32_t>(i) - boundaries.back());
      longest = std::max(longest, batch.positions[i] + 1);
    }
    boundaries.push_back(static_cast<int32_t>(batch.tokens.size()));
    RC_ASSERT(batch.cu_seqlens == boundaries);
    RC_ASSERT(batch.valid_labels == valid);
    RC_ASSERT(batch.max_document_length == longest);
  });
  EXPECT_TRUE(holds);
}

TEST(ConcatRows, RefusesADatasetTooSmallForOneRow) {
  const TempFolder folder;
  const auto message = message_of<UsageError>([&] { packed(folder, counting_documents({4}), 4); });
  EXPECT_CONTAINS(message, "holds 4 tokens, too few for one row of 4 tokens");
}

TEST(ConcatRows, NamesFileDocumentAndIdOutsideOfTheVocabulary) {
  const TempFolder folder;
  const auto source = packed(folder, {{1, 2, 3}, {4, 300, 5, 6}}, 3, 256);
  const auto message = message_of<FormatError>([&] { batch_of(*source); });
  EXPECT_CONTAINS(
      message,
      "pair.bin: document 1 holds token id 300 (token 4 of the data set), but the vocabulary has 256");
}

TEST(ConcatRows, NegativeIdsAreOutsideOfTheVocabulary) {
  const TempFolder folder;
  write_dataset(folder / "pair", {{1, 2, 3, 4}}, TokenType::i32);
  std::string bin = read_file(folder / "pair.bin");
  bin[7] = '\x80';
  folder.write("pair.bin", bin);
  const ConcatRows source(std::make_shared<IndexedDataset>(folder / "pair"), 3, 256, std::nullopt);
  Row row;
  EXPECT_CONTAINS(message_of<FormatError>([&] { source.read(0, row); }), "holds token id -2147483646");
}

TEST(ConcatRows, TheFingerprintDependsOnContentAndRowLength) {
  const TempFolder a, b, c;
  const auto one = packed(a, counting_documents({9}), 4);
  EXPECT_EQ(packed(b, counting_documents({9}), 4)->fingerprint(), one->fingerprint());
  EXPECT_NE(packed(c, counting_documents({4, 5}), 4)->fingerprint(), one->fingerprint());
  EXPECT_NE(packed(b, counting_documents({9}), 3)->fingerprint(), one->fingerprint());
  EXPECT_NE(packed(b, {{0, 1, 2, 3, 4, 5, 6, 7, 9}}, 4)->fingerprint(), one->fingerprint());
}

TEST(Batch, RefusesMoreTokensThanBoundariesCanCount) {
  EXPECT_CONTAINS(message_of<UsageError>([] { empty_batch(int64_t{1} << 20, 2048); }),
                  "2048 rows of 1048576 tokens");
  EXPECT_CONTAINS(message_of<UsageError>([] { empty_batch(0, 1); }), "rows of 0 tokens");
}

TEST(ConcatRows, LabelsThatDoNotCountAreIgnored) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "pair", {.type = TokenType::u16, .loss_mask = true});
  writer.add_document(std::vector<int32_t>{1, 2, 3, 4, 5}, std::vector<uint8_t>{0, 0, 1, 1, 0});
  writer.publish();
  const ConcatRows rows(std::make_shared<IndexedDataset>(folder / "pair"), 4, 10, std::nullopt);
  Batch batch = empty_batch(4, 1);
  Row row;
  rows.read(0, row);
  append_row(row, 0, batch);
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{-100, 3, 4, -100}));
  EXPECT_EQ(batch.valid_labels, 2);
}

TEST(ConcatRows, AStreamKnowsATokenThatItsFingerprintDoesNotSample) {
  const TempFolder folder;
  const auto content = [&](int32_t in_the_middle) {
    std::vector<int32_t> tokens(3'000'000, 7);
    tokens[1'405'023] = in_the_middle;  // between two samples of token_files.cpp
    const auto dataset = write_dataset(folder / "pair", {tokens});
    const auto rows = std::make_shared<ConcatRows>(dataset, 8, 100, std::nullopt);
    const auto stream = RowStream::mixture({{rows, 1.0}}, 1, true);
    return std::pair(stream->fingerprint(),
                     stream->content([](const std::filesystem::path& file) { return file_hash(file); }));
  };
  const auto before = content(7);
  const auto after = content(8);
  EXPECT_EQ(before.first, after.first) << "a sample";
  EXPECT_NE(before.second, after.second);
}

}  // namespace
}  // namespace stepforge::testing
