// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/preset_packing.h"

#include <gtest/gtest.h>

#include "stepforge/base/random.h"
#include "stepforge/data/npy.h"
#include "tests/data/test_support.h"

namespace stepforge::testing {
namespace {

using Numbers = std::vector<int64_t>;

class PresetPacking : public ::testing::Test {
 protected:
  /// Rows [document 1, document 0] and [document 2] of documents of 3, 5 and 4 tokens.
  Numbers boundaries_ = {0, 2, 3};
  Numbers samples_ = {0, 1, -1, -1, 0, 5, 0, 0, -1, -1, 0, 3, 0, 2, -1, -1, 0, 4};
  Numbers lengths_ = {3, 5, 4};

  void write() const {
    std::filesystem::create_directories(folder_ / "packed");
    write_npy(folder_ / "packed" / "boundaries.npy", Numbers{std::ssize(boundaries_)}, boundaries_);
    write_npy(folder_ / "packed" / "samples.npy", Numbers{std::ssize(samples_) / 6, 6}, samples_);
  }
  PackTable read() const { return read_pack_table(folder_ / "packed", lengths_, 8); }
  std::string refusal() const {
    write();
    return message_of<FormatError>([&] { read(); });
  }
  int64_t& sample(size_t piece, size_t column) { return samples_[piece * 6 + column]; }

  TempFolder folder_;
};

TEST_F(PresetPacking, ReadsTheRowsOfTheFiles) {
  write();
  const PackTable table = read();
  EXPECT_EQ(table.row_begins, boundaries_);
  EXPECT_EQ(table.pieces, (std::vector<Piece>{{1, 0, 5}, {0, 0, 3}, {2, 0, 4}}));
  EXPECT_EQ(table.unused_tokens, 0);
}

TEST_F(PresetPacking, EveryPackingComesBackAsItWasWritten) {
  Numbers lengths;
  for (uint64_t i = 0; i < 500; ++i) lengths.push_back(philox(1, i)[0] % 40);
  for (const Packing packing :
       {Packing::hard, Packing::soft, Packing::best_fit, Packing::none, Packing::budget}) {
    const PackTable table = pack_documents(lengths, 32, packing, 5);
    const auto folder = folder_ / format("rows{}", static_cast<int>(packing));
    write_pack_table(folder, table);
    const PackTable again = read_pack_table(folder, lengths, 32);
    EXPECT_EQ(again.pieces, table.pieces);
    EXPECT_EQ(again.row_begins, table.row_begins);
    EXPECT_EQ(again.unused_tokens, table.unused_tokens);
    EXPECT_THROW(write_pack_table(folder, table), Error);  // it exists
  }
}

TEST_F(PresetPacking, RefusesBoundariesThatAreNone) {
  boundaries_ = {0, 2, 1};
  EXPECT_CONTAINS(refusal(), "boundaries.npy: row 1 would be pieces [2, 1)");
  boundaries_ = {0, 0, 3};
  EXPECT_CONTAINS(refusal(), "row 0 would be pieces [0, 0)");
  boundaries_ = {1, 2, 3};
  EXPECT_CONTAINS(refusal(), "the first number is 1, not 0");
  boundaries_ = {0, 2, INT64_MAX};
  EXPECT_CONTAINS(refusal(), "the last number is 9223372036854775807, but samples.npy has 3 pieces");
  boundaries_ = {0};
  EXPECT_CONTAINS(refusal(), "at least two numbers");
}

TEST_F(PresetPacking, RefusesPiecesThatTheDocumentsDoNotHave) {
  const auto changed = [&](size_t column, int64_t value) {
    const Numbers before = samples_;
    sample(2, column) = value;
    std::string message = refusal();
    samples_ = before;
    return message;
  };
  EXPECT_CONTAINS(changed(1, 3), "samples.npy: row 1, piece 2: document 3; the data has 3");
  EXPECT_CONTAINS(changed(1, -1), "document -1");
  EXPECT_CONTAINS(changed(5, 5), "tokens [0, 5) of document 2, which has 4");
  EXPECT_CONTAINS(changed(5, INT64_MAX), "tokens [0, 9223372036854775807)");
  EXPECT_CONTAINS(changed(4, 4), "tokens [4, 4)");
  EXPECT_CONTAINS(changed(4, INT64_MIN), "tokens [-9223372036854775808, 4)");
  EXPECT_CONTAINS(changed(0, 1), "data set 1; a folder describes one, 0");
  EXPECT_CONTAINS(changed(2, 0), "characters [0, -1)");
  lengths_ = {3, 6, 4};
  sample(0, 5) = 6;
  EXPECT_CONTAINS(refusal(),
                  "row 0, piece 1: the row has 9 tokens up to here, more than training.seq_len = 8");
}

TEST_F(PresetPacking, RefusesTokensUsedTwiceAndDocumentsNotUsedUnlessAllowed) {
  const Numbers whole = samples_;
  sample(2, 1) = 1;
  EXPECT_CONTAINS(refusal(),
                  "pieces 0 and 2 both have token 0 of document 1; to allow that, write "
                  "{\"every_document_once\": false} to packing.json");
  folder_.write("packed/packing.json", "{\"every_document_once\": false}");
  EXPECT_EQ(read().pieces[2], (Piece{1, 0, 4}));
  folder_.write("packed/packing.json", "{\"every_document_once\": true}");
  samples_ = whole;
  lengths_ = {3, 5, 4, 0, 2};
  EXPECT_CONTAINS(refusal(), "no row has document 4");
  folder_.write("packed/packing.json", "{\"once\": true}");
  EXPECT_CONTAINS(refusal(), "once");
}

TEST_F(PresetPacking, PiecesOfOneDocumentMayBeInSeveralRows) {
  sample(0, 5) = 2;
  sample(1, 1) = 1;
  sample(1, 4) = 2;
  sample(1, 5) = 5;
  lengths_ = {0, 5, 4};
  write();
  EXPECT_EQ(read().pieces[1], (Piece{1, 2, 5}));
}

TEST_F(PresetPacking, RefusesMissingFilesLinksAndOtherShapes) {
  EXPECT_CONTAINS(message_of<UsageError>([&] { read(); }),
                  "boundaries.npy does not exist: data.preset names");
  write();
  write_npy(folder_ / "packed" / "samples.npy", Numbers{9, 2}, samples_);
  EXPECT_CONTAINS(message_of<FormatError>([&] { read(); }), "samples.npy: expected six columns");
  write();
  std::filesystem::rename(folder_ / "packed" / "samples.npy", folder_ / "outside.npy");
  std::filesystem::create_symlink(folder_ / "outside.npy", folder_ / "packed" / "samples.npy");
  EXPECT_CONTAINS(message_of<FormatError>([&] { read(); }), "samples.npy: a symbolic link is not followed");
}

}  // namespace
}  // namespace stepforge::testing
