// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/token_shards.h"

#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "tests/dataset/test_support.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string header_of(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return bytes_of(header);
}

std::string gpt2_file(const std::vector<uint16_t>& tokens) {
  return header_of(20240520, 1, static_cast<int32_t>(tokens.size())) + bytes_of(tokens);
}

std::string llama3_file(const std::vector<uint32_t>& tokens) {
  return header_of(20240801, 7, static_cast<int32_t>(tokens.size())) + bytes_of(tokens);
}

Documents documents_in(const IndexedDataset& dataset) {
  Documents documents;
  for (int64_t d = 0; d < dataset.index().documents(); ++d) {
    const int64_t begin = dataset.index().document_begin(d);
    documents.emplace_back(static_cast<size_t>(dataset.index().document_begin(d + 1) - begin));
    dataset.read(begin, documents.back());
  }
  return documents;
}

class TokenShardsTest : public ::testing::Test {
 protected:
  Documents read(const std::string& path, const std::string& format = "auto",
                 std::optional<int32_t> eos = {}) const {
    return documents_in(*open_finished_dataset(folder_ / path, format, eos));
  }
  template <typename Exception>
  std::string message(const std::string& path, const std::string& format = "auto") const {
    return message_of<Exception>([&] { open_finished_dataset(folder_ / path, format, std::nullopt); });
  }
  std::string fault_of(const std::string& bytes) const {
    folder_.write("bad.bin", bytes);
    return message<FormatError>("bad.bin");
  }

  TempFolder folder_;
};

TEST_F(TokenShardsTest, DocumentsOfLlmcBeginWithTheEndOfText) {
  folder_.write("a.bin", gpt2_file({50256, 1, 2, 50256, 50256, 3}));
  EXPECT_EQ(read("a.bin"), (Documents{{50256, 1, 2}, {50256}, {50256, 3}}));
  EXPECT_EQ(read("a.bin", "bin"), read("a.bin"));
  // A tokenizer of one's own, and a shard that begins inside of a document.
  EXPECT_EQ(read("a.bin", "auto", 2), (Documents{{50256, 1}, {2, 50256, 50256, 3}}));
  folder_.write("b.bin", llama3_file({7, 128000, 127999, 65536}));
  EXPECT_EQ(read("b.bin", "auto", 128001), (Documents{{7}, {128000, 127999, 65536}}));
}

TEST_F(TokenShardsTest, DocumentsOfRawTokensEndWithTheEndOfText) {
  folder_.write("train.bin", bytes_of<uint16_t>({1, 2, 9, 9, 3, 65535}));
  EXPECT_EQ(read("train.bin", "tokens_u16", 9), (Documents{{1, 2, 9}, {9}, {3, 65535}}));
  EXPECT_EQ(read("train.bin", "tokens_u16", 65535), (Documents{{1, 2, 9, 9, 3, 65535}}));
  EXPECT_EQ(read("train.bin", "tokens_u16"), (Documents{{1, 2, 9, 9, 3, 65535}}));
  folder_.write("wide.bin", bytes_of<uint32_t>({100'000, 9, 5}));
  EXPECT_EQ(read("wide.bin", "tokens_u32", 9), (Documents{{100'000, 9}, {5}}));
}

TEST_F(TokenShardsTest, ShardsAreOneDataSetInSortedOrder) {
  folder_.write("set/train_2.bin", gpt2_file({3, 50256, 4}));
  folder_.write("set/train_1.bin", gpt2_file({50256, 1, 2}));
  folder_.write("set/val_0.bin", gpt2_file({50256, 9}));
  folder_.write("set/notes.txt", "x");
  // A document may go on in the next shard.
  EXPECT_EQ(read("set/train_*.bin"), (Documents{{50256, 1, 2, 3}, {50256, 4}}));
  EXPECT_EQ(read("set", "bin"), (Documents{{50256, 1, 2, 3}, {50256, 4}, {50256, 9}}));
  const auto dataset = open_finished_dataset(folder_ / "set/train_*.bin", "auto", std::nullopt);
  EXPECT_CONTAINS(dataset->name(), "train_1.bin and 1 more file");
  for (int64_t first = 0; first < 6; ++first) {
    for (int64_t count = 0; first + count <= 6; ++count) {
      std::vector<int32_t> tokens(static_cast<size_t>(count));
      dataset->read(first, tokens);
      const std::vector<int32_t> all = {50256, 1, 2, 3, 50256, 4};
      EXPECT_EQ(tokens, std::vector<int32_t>(all.begin() + first, all.begin() + first + count));
    }
  }
  Row row;
  EXPECT_CONTAINS(message_of<FormatError>([&] { dataset->append(2, 4, 1000, row); }),
                  "train_2.bin: document 1 holds token id 50256 (token 4 of the data set)");
}

TEST_F(TokenShardsTest, FindsDocumentsOnBothSidesOfItsBlocks) {
  std::vector<uint16_t> tokens((1 << 22) + 10, 1);
  Documents expected;
  std::vector<size_t> marks = {0, (1 << 22) - 1, 1 << 22, (1 << 22) + 9};
  for (const size_t mark : marks) tokens[mark] = 50256;
  folder_.write("a.bin", gpt2_file(tokens));
  const auto llmc = open_finished_dataset(folder_ / "a.bin", "auto", std::nullopt);
  folder_.write("b.bin", bytes_of(tokens));
  const auto raw = open_finished_dataset(folder_ / "b.bin", "tokens_u16", 50256);
  const auto begins = [](const IndexedDataset& dataset) {
    std::vector<int64_t> result;
    for (int64_t i = 0; i <= dataset.index().documents(); ++i)
      result.push_back(dataset.index().document_begin(i));
    return result;
  };
  const int64_t block = 1 << 22;
  EXPECT_EQ(begins(*llmc), (std::vector<int64_t>{0, block - 1, block, block + 9, block + 10}));
  EXPECT_EQ(begins(*raw), (std::vector<int64_t>{0, 1, block, block + 1, block + 10}));
}

TEST_F(TokenShardsTest, APairStaysAPair) {
  write_dataset(folder_ / "pair", {{1, 2}, {3}});
  for (const std::string path : {"pair", "pair.bin", "pair.idx", "pai?.bin"})
    EXPECT_EQ(read(path), (Documents{{1, 2}, {3}}));
  write_dataset(folder_ / "pair2", {{4}});
  EXPECT_CONTAINS(message<UsageError>("pair*.bin"), "pair*.bin names several files, of which",
                  "pair.bin belongs to a Megatron pair; make each pair a source");
  EXPECT_CONTAINS(message<UsageError>("none.bin"), "none.idx does not exist");
  EXPECT_CONTAINS(message<UsageError>("none*.bin"), "nothing matches");
}

TEST_F(TokenShardsTest, RefusesMalformedHeaders) {
  const std::string good = gpt2_file({1, 2, 3});
  EXPECT_CONTAINS(fault_of("tokens"),
                  "bad.bin: magic: not a token file of llm.c; there is no .idx beside it either",
                  "format = \"tokens_u16\"");
  EXPECT_CONTAINS(fault_of(""), "bad.bin: magic");
  EXPECT_CONTAINS(fault_of(good.substr(0, 1023)), "bad.bin: header: the file ends at byte 1023");
  EXPECT_CONTAINS(fault_of(good.substr(0, 4)), "bad.bin: header: the file ends at byte 4");
  EXPECT_CONTAINS(fault_of(header_of(20240520, 7, 0)), "bad.bin: version: 7; only version 1 is known");
  EXPECT_CONTAINS(fault_of(header_of(20240801, 1, 0)), "bad.bin: version: 1; only version 7 is known");
  EXPECT_CONTAINS(fault_of(header_of(20240522, 1, 0)), "bad.bin: magic");  // llm.c's evaluation files
  EXPECT_CONTAINS(fault_of(good.substr(0, good.size() - 1)),
                  "bad.bin: number of tokens: 3; they and the header make 1030 bytes, but the file has 1029");
  EXPECT_CONTAINS(fault_of(good + "xx"), "but the file has 1032");
  for (const int32_t tokens : {-1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()})
    EXPECT_CONTAINS(fault_of(header_of(20240520, 1, tokens)),
                    format("bad.bin: number of tokens: {};", tokens));
}

TEST_F(TokenShardsTest, RefusesFilesThatDoNotBelongTogether) {
  folder_.write("a.bin", gpt2_file({1}));
  folder_.write("b.bin", llama3_file({1}));
  EXPECT_CONTAINS(message<UsageError>("?.bin"), "b.bin holds tokens of another tokenizer than",
                  "a.bin; make them two sources");
  EXPECT_CONTAINS(message<UsageError>("a.bin", "tokens_u16"),
                  "a.bin has the header of llm.c's token files; set format = \"bin\"");
  folder_.write("odd.bin", "abc");
  EXPECT_CONTAINS(message<FormatError>("odd.bin", "tokens_u16"),
                  "odd.bin has 3 bytes after a header of 0, which are not whole tokens of 2 bytes");
  folder_.write("empty.bin", "");
  EXPECT_CONTAINS(message<UsageError>("empty.bin", "tokens_u16"), "empty.bin holds no tokens");
  fs::create_directory(folder_ / "nothing");
  EXPECT_CONTAINS(message<UsageError>("nothing", "bin"), "nothing contains no *.bin file");
}

TEST_F(TokenShardsTest, IdsOutsideOfTheVocabularyAreRefusedWhenRowsAreMade) {
  folder_.write("a.bin", bytes_of<uint32_t>({1, 0xFFFFFFFF}));
  const auto dataset = open_finished_dataset(folder_ / "a.bin", "tokens_u32", std::nullopt);
  Row row;
  EXPECT_CONTAINS(message_of<FormatError>([&] { dataset->append(0, 2, 1000, row); }),
                  "a.bin: document 0 holds token id -1");
}

TEST_F(TokenShardsTest, NamesAFileThatBecomesShorter) {
  const auto path = folder_.write("a.bin", gpt2_file({1, 2, 3}));
  const auto dataset = open_finished_dataset(path, "auto", std::nullopt);
  fs::resize_file(path, 1026);
  std::vector<int32_t> tokens(3);
  EXPECT_CONTAINS(message_of<Error>([&] { dataset->read(0, tokens); }), "a.bin became shorter");
}

TEST_F(TokenShardsTest, TheContentKeyDependsOnTokensAndDocuments) {
  folder_.write("a.bin", bytes_of<uint16_t>({1, 2, 3, 4}));
  folder_.write("b.bin", bytes_of<uint16_t>({1, 2, 3, 5}));
  const auto key = [&](const std::string& path, std::optional<int32_t> eos) {
    return open_finished_dataset(folder_ / path, "tokens_u16", eos)->content_key();
  };
  EXPECT_EQ(key("a.bin", 2), key("a.bin", 2));
  EXPECT_NE(key("a.bin", 2), key("a.bin", 1));
  EXPECT_NE(key("a.bin", 2), key("b.bin", 2));
  EXPECT_NE(key("a.bin", 2), key("?.bin", 2));
}

}  // namespace
}  // namespace stepforge::testing
