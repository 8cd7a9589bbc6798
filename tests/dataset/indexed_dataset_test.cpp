// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <fstream>
#include <functional>
#include <span>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stepforge/dataset/indexed_dataset_writer.h"
#include "tests/dataset/test_support.h"
#include "tests/support/sanitizer.h"

namespace stepforge::testing {
namespace {

std::vector<std::vector<int32_t>> read_documents(const IndexedDataset& dataset) {
  std::vector<std::vector<int32_t>> documents;
  for (int64_t d = 0; d < dataset.index().documents(); ++d) {
    const int64_t begin = dataset.index().document_begin(d);
    documents.emplace_back(static_cast<size_t>(dataset.index().document_begin(d + 1) - begin));
    dataset.read(begin, documents.back());
  }
  return documents;
}

TEST(IndexedDataset, APartHasSomeOfTheDocumentsAndTheirMask) {
  const TempFolder folder;
  {
    IndexedDatasetWriter writer(folder / "pair", {TokenType::u16, /*loss_mask=*/true});
    writer.add_document(std::vector<int32_t>{1, 2}, std::vector<uint8_t>{0, 1});
    writer.add_document(std::vector<int32_t>{3, 4, 5}, std::vector<uint8_t>{1, 0, 1});
    writer.add_document(std::vector<int32_t>{600}, std::vector<uint8_t>{1});
    writer.publish();
  }
  const IndexedDataset whole(folder / "pair");
  const auto part = whole.part(1, 3);
  EXPECT_EQ(read_documents(*part), (Documents{{3, 4, 5}, {600}}));
  Row row;
  part->append(0, 3, 100, row);
  EXPECT_EQ(row.counted, (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(read_documents(*part->part(1, 2)), (Documents{{600}}));
  EXPECT_EQ(whole.part(0, 3)->content_key(), whole.content_key());
  EXPECT_NE(part->content_key(), whole.content_key());
  EXPECT_NE(part->content_key(), whole.part(0, 2)->content_key());
  EXPECT_CONTAINS(message_of<FormatError>([&] { part->append(3, 1, 100, row); }),
                  "document 2 holds token id 600 (token 5 of the data set)");
  EXPECT_CONTAINS(message_of<Error>([&] { whole.part(2, 4); }), "documents [2, 4) of 3");
}

TEST(IndexedDataset, ReadsTheDocumentsThatWereWritten) {
  const bool holds = rc::check("round trip", [] {
    const auto type = *rc::gen::element(TokenType::u8, TokenType::u16, TokenType::i32);
    const int32_t limit = type == TokenType::u8    ? 256
                          : type == TokenType::u16 ? 65536
                                                   : std::numeric_limits<int32_t>::max();
    const auto documents =
        *rc::gen::container<Documents>(rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(0, limit)));
    const TempFolder folder;
    const auto dataset = write_dataset(folder / "pair", documents, type);
    RC_ASSERT(read_documents(*dataset) == documents);
    RC_ASSERT(dataset->index().type() == type);
    for (int64_t token = 0; token < dataset->index().tokens(); ++token) {
      const int64_t document = dataset->index().document_of(token);
      RC_ASSERT(dataset->index().document_begin(document) <= token);
      RC_ASSERT(token < dataset->index().document_begin(document + 1));
    }
  });
  EXPECT_TRUE(holds);
}

TEST(IndexedDataset, WritesMegatronsBytes) {
  const TempFolder folder;
  write_dataset(folder / "pair", {{1, 2, 3}, {258}});
  const std::string expected_idx(
      "MMIDIDX\0\0"       // magic
      "\1\0\0\0\0\0\0\0"  // version 1
      "\10"               // u16
      "\2\0\0\0\0\0\0\0"  // sequences
      "\3\0\0\0\0\0\0\0"  // document boundaries
      "\3\0\0\0\1\0\0\0"  // lengths
      "\0\0\0\0\0\0\0\0"  // offsets
      "\6\0\0\0\0\0\0\0"  //
      "\0\0\0\0\0\0\0\0"  // boundaries
      "\1\0\0\0\0\0\0\0"  //
      "\2\0\0\0\0\0\0\0",
      34 + 2 * 12 + 3 * 8);
  EXPECT_EQ(read_file(folder / "pair.idx"), expected_idx);
  EXPECT_EQ(read_file(folder / "pair.bin"), std::string("\1\0\2\0\3\0\2\1", 8));
}

TEST(IndexedDataset, ReadsDocumentsOfSeveralSequences) {
  const TempFolder folder;
  write_dataset(folder / "pair", {{1, 2}, {3}, {4, 5}});
  std::string idx = read_file(folder / "pair.idx");
  idx.erase(idx.size() - 24, 8);  // boundaries 0 1 2 3 -> 0 2 3
  idx[26] = 3;
  folder.write("pair.idx", idx);
  EXPECT_EQ(read_documents(IndexedDataset(folder / "pair")), (Documents{{1, 2, 3}, {4, 5}}));
}

TEST(IndexedDataset, ChoosesTheTokenTypeAsMegatron) {
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
}

TEST(IndexedDataset, OpensByPrefixOrByEitherFile) {
  const TempFolder folder;
  write_dataset(folder / "v1.0", {{7}});
  EXPECT_EQ(IndexedDataset(folder / "v1.0").index().tokens(), 1);
  EXPECT_EQ(IndexedDataset(folder / "v1.0.bin").index().tokens(), 1);
  EXPECT_EQ(IndexedDataset(folder / "v1.0.idx").index().tokens(), 1);
}

TEST(IndexedDataset, NamesTheMissingFileOfAPair) {
  const TempFolder folder;
  write_dataset(folder / "pair", {{7}});
  std::filesystem::remove(folder / "pair.bin");
  EXPECT_CONTAINS(message_of<UsageError>([&] { IndexedDataset(folder / "pair"); }),
                  "pair.bin does not exist");
}

TEST(IndexedDatasetWriter, LeavesNothingBehindWithoutPublish) {
  const TempFolder folder;
  {
    IndexedDatasetWriter writer(folder / "pair", {TokenType::u16});
    writer.add_document(std::vector<int32_t>{1, 2});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// The most memory that this process has held, in KiB.
int64_t peak_memory_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  }
  return -1;
}

TEST(IndexedDatasetWriter, NeedsNoMemoryForEachDocument) {
  if (kSanitizer) GTEST_SKIP() << "a sanitizer has memory of its own for every allocation";
  const TempFolder folder;
  // A child, whose peak is not that of the tests before. The lengths alone have 16 MB.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto write = [&](int documents) {
      IndexedDatasetWriter writer(folder / "pair", {TokenType::u8});
      const std::vector<int32_t> document = {1};
      for (int i = 0; i < documents; ++i) writer.add_document(document);
      writer.publish();
      return peak_memory_kib();
    };
    const int64_t few = write(600'000);
    _exit(few > 0 && write(4'000'000) - few < 6000 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(IndexedDataset(folder / "pair").index().documents(), 4'000'000);
}

TEST(IndexedDatasetWriter, ReplacesAnOlderPair) {
  const TempFolder folder;
  write_dataset(folder / "pair", {{1, 2}});
  write_dataset(folder / "pair", {{3}});
  EXPECT_EQ(read_documents(IndexedDataset(folder / "pair")), (Documents{{3}}));
}

TEST(IndexedDatasetWriter, RefusesIdsThatDoNotFit) {
  const TempFolder folder;
  const auto write = [&](TokenType type, int32_t id) {
    return message_of<Error>(
        [&] { IndexedDatasetWriter(folder / "pair", {type}).add_document(std::vector<int32_t>{id}); });
  };
  EXPECT_CONTAINS(write(TokenType::u16, 65536), "token id 65536 does not fit the dataset's token type u16");
  EXPECT_CONTAINS(write(TokenType::u8, 256), "token id 256");
  EXPECT_CONTAINS(write(TokenType::i32, -1), "token id -1");
}

// --- hostile .idx files ---

/// An .idx of 3 sequences of 2, 0 and 1 tokens in u16 and of 2 documents; its .bin has 6 bytes.
std::string good_index() {
  const TempFolder folder;
  write_dataset(folder / "pair", {{1, 2}, {}, {3}});
  std::string idx = read_file(folder / "pair.idx");
  idx.erase(idx.size() - 24, 8);
  idx[26] = 3;
  return idx;
}

constexpr size_t kVersion = 9, kType = 17, kSequences = 18, kBoundaries = 26, kLengths = 34,
                 kOffsets = kLengths + 12, kDocuments = kOffsets + 24;

template <typename T>
void put(std::string& idx, size_t offset, T value) {
  std::memcpy(idx.data() + offset, &value, sizeof value);
}

struct Hostile {
  const char* name;
  std::function<void(std::string&)> damage;
  const char* expected;  ///< part of the message
  uint64_t bin_bytes = 6;
};

class HostileIndex : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileIndex, IsRefusedWithOffsetAndField) {
  std::string idx = good_index();
  GetParam().damage(idx);
  // A heap block of the exact size lets the address sanitizer see any read past the end.
  const std::vector<char> exact(idx.begin(), idx.end());
  const std::string message = message_of<FormatError>(
      [&] { DatasetIndex::parse(std::as_bytes(std::span(exact)), GetParam().bin_bytes, "x.idx"); });
  EXPECT_CONTAINS(message, GetParam().expected);
  EXPECT_CONTAINS(message, "x.idx: byte ");
}

const Hostile kHostile[] = {
    {"Empty", [](auto& s) { s.clear(); }, "byte 0, header: the file ends"},
    {"HeaderCut", [](auto& s) { s.resize(33); }, "byte 33, header"},
    {"OtherMagic", [](auto& s) { s[3] = 'X'; }, "byte 0, magic"},
    {"MagicWithoutZeros", [](auto& s) { s[8] = 1; }, "byte 0, magic"},
    {"Version0", [](auto& s) { put<uint64_t>(s, kVersion, 0); }, "byte 9, version: 0"},
    {"Version2", [](auto& s) { put<uint64_t>(s, kVersion, 2); }, "byte 9, version: 2; only version 1"},
    {"BigEndianVersion", [](auto& s) { put<uint64_t>(s, kVersion, uint64_t{1} << 56); }, "byte 9, version"},
    {"Type0", [](auto& s) { s[kType] = 0; }, "byte 17, token type: code 0 (unknown)"},
    {"TypeFloat", [](auto& s) { s[kType] = 7; }, "code 7 (f32)"},
    {"TypeI64", [](auto& s) { s[kType] = 5; }, "code 5 (i64); token ids are u8, u16 or i32"},
    {"Type255", [](auto& s) { s[kType] = static_cast<char>(255); }, "code 255 (unknown)"},
    {"SequencesHuge", [](auto& s) { put<uint64_t>(s, kSequences, ~uint64_t{0}); }, "byte 18, sequence count"},
    {"SequencesWrapTo0", [](auto& s) { put<uint64_t>(s, kSequences, uint64_t{1} << 62); },
     "byte 18, sequence count"},
    {"SequencesWrapToSize", [](auto& s) { put<uint64_t>(s, kSequences, (uint64_t{1} << 62) + 3); },
     "byte 18, sequence count"},
    {"SequencesOneMore", [](auto& s) { put<uint64_t>(s, kSequences, 4); }, "end of file"},
    {"SequencesOneLess", [](auto& s) { put<uint64_t>(s, kSequences, 2); }, "end of file"},
    {"BoundariesHuge", [](auto& s) { put<uint64_t>(s, kBoundaries, ~uint64_t{0}); },
     "byte 26, document count"},
    {"BoundariesWrap", [](auto& s) { put<uint64_t>(s, kBoundaries, (uint64_t{1} << 61) + 3); },
     "byte 26, document count"},
    {"Boundaries0", [](auto& s) { put<uint64_t>(s, kBoundaries, 0); }, "byte 26, document count: 0"},
    {"BoundariesOneMore", [](auto& s) { put<uint64_t>(s, kBoundaries, 4); }, "end of file"},
    {"LastByteCut", [](auto& s) { s.pop_back(); }, "end of file"},
    {"OneByteMore", [](auto& s) { s.push_back('\0'); }, "end of file"},
    {"Modes", [](auto& s) { s.append(3, '\0'); }, "multimodal"},
    {"LengthNegative", [](auto& s) { put<int32_t>(s, kLengths, -2); },
     "byte 34, length of sequence 0: -2 is negative"},
    {"LengthMinimal", [](auto& s) { put<int32_t>(s, kLengths + 8, INT32_MIN); },
     "byte 42, length of sequence 2"},
    {"LengthPastBin", [](auto& s) { put<int32_t>(s, kLengths + 8, 2); },
     "byte 42, length of sequence 2: 2 tokens from byte 4"},
    {"LengthHuge", [](auto& s) { put<int32_t>(s, kLengths, INT32_MAX); }, "byte 34, length of sequence 0"},
    {"FirstOffsetNot0", [](auto& s) { put<int64_t>(s, kOffsets, 2); }, "byte 46, offset of sequence 0: 2"},
    {"OffsetNegative", [](auto& s) { put<int64_t>(s, kOffsets + 8, -4); },
     "byte 54, offset of sequence 1: -4"},
    {"OffsetsOverlap", [](auto& s) { put<int64_t>(s, kOffsets + 16, 2); },
     "byte 62, offset of sequence 2: 2"},
    {"OffsetsGap", [](auto& s) { put<int64_t>(s, kOffsets + 16, 6); }, "byte 62, offset of sequence 2: 6"},
    {"OffsetPastBin", [](auto& s) { put<int64_t>(s, kOffsets + 16, INT64_MAX); },
     "byte 62, offset of sequence 2"},
    {"BinLonger", [](auto&) {}, "total length: the sequences cover 6 bytes, but the .bin has 8", 8},
    {"BinShorter", [](auto&) {}, "length of sequence 2", 4},
    {"BinOdd", [](auto&) {}, "total length", 7},
    {"BinEmpty", [](auto&) {}, "length of sequence 0", 0},
    {"FirstBoundaryNot0", [](auto& s) { put<int64_t>(s, kDocuments, 1); }, "byte 70, document boundary 0: 1"},
    {"BoundaryNegative", [](auto& s) { put<int64_t>(s, kDocuments + 8, -1); },
     "byte 78, document boundary 1: -1"},
    {"BoundariesDescend", [](auto& s) { put<int64_t>(s, kDocuments + 16, 1); },
     "byte 86, document boundary 2: 1 comes after 2"},
    {"BoundaryPastSequences", [](auto& s) { put<int64_t>(s, kDocuments + 8, 4); },
     "byte 78, document boundary 1: 4; there are only 3"},
    {"LastBoundaryShort", [](auto& s) { put<int64_t>(s, kDocuments + 16, 2); },
     "byte 86, document boundary 2: 2; the last"},
};

INSTANTIATE_TEST_SUITE_P(Faults, HostileIndex, ::testing::ValuesIn(kHostile),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(HostileIndex, TheUndamagedIndexIsAccepted) {
  const std::string idx = good_index();
  const auto index = DatasetIndex::parse(std::as_bytes(std::span(idx)), 6, "x.idx");
  EXPECT_EQ(index.documents(), 2);
  EXPECT_EQ(index.tokens(), 3);
}

TEST(IndexedDataset, NamesATruncatedBinInsteadOfCrashing) {
  const TempFolder folder;
  const auto dataset = write_dataset(folder / "pair", counting_documents({50'000}), TokenType::i32);
  std::filesystem::resize_file(folder / "pair.bin", 100'000);
  std::vector<int32_t> tokens(50'000);
  EXPECT_CONTAINS(message_of<Error>([&] { dataset->read(0, tokens); }), "pair.bin became shorter");
}

}  // namespace
}  // namespace stepforge::testing
