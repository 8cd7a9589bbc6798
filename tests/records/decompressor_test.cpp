// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/decompressor.h"

#include <gtest/gtest.h>

#include "stepforge/records/text_source.h"
#include "tests/records/compressed.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

std::string numbered_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += format("line {} of them\n", i);
  return text;
}

/// The contents, read in pieces of `piece` bytes.
std::string unpacked(const std::filesystem::path& path, size_t piece = 1000) {
  const auto input = open_bytes(path);
  std::string text;
  std::string block(piece, '\0');
  for (int64_t count = std::ssize(block); count == std::ssize(block);) {
    count = input->read(block);
    text += block.substr(0, static_cast<size_t>(count));
  }
  return text;
}

TEST(Decompressor, ReadsGzipAndZstandardInPiecesOfAnySize) {
  const TempFolder folder;
  const std::string text = numbered_lines(100000);
  for (const size_t piece : {1000, 1 << 20, 100000000}) {
    EXPECT_EQ(unpacked(folder.write("a.gz", gzip(text)), piece), text);
    EXPECT_EQ(unpacked(folder.write("a.zst", zstd(text)), piece), text);
  }
  EXPECT_EQ(unpacked(folder.write("e.gz", gzip(""))), "");
  EXPECT_EQ(unpacked(folder.write("e.zst", zstd(""))), "");
}

TEST(Decompressor, ReadsSeveralStreamsEndToEnd) {
  const TempFolder folder;
  EXPECT_EQ(unpacked(folder.write("a.gz", gzip("one\n") + gzip("two\n"))), "one\ntwo\n");
  EXPECT_EQ(unpacked(folder.write("a.zst", zstd("one\n") + zstd("two\n"))), "one\ntwo\n");
}

TEST(Decompressor, NamesTheByteOfCorruptAndTruncatedFiles) {
  const TempFolder folder;
  const std::string text = numbered_lines(1000);
  const auto fault = [&](const std::string& name, std::string bytes) {
    const auto path = folder.write(name, bytes);
    return message_of<FormatError>([&] { unpacked(path); });
  };
  EXPECT_CONTAINS(fault("a.gz", gzip(text).substr(0, 500)),
                  "a.gz: byte 500: the file ends inside of a gzip stream: it is truncated");
  EXPECT_CONTAINS(fault("a.zst", zstd(text).substr(0, 500)),
                  "a.zst: byte 500: the file ends inside of a Zstandard frame: it is truncated");
  EXPECT_CONTAINS(fault("a.gz", "not compressed"), "corrupt gzip data");
  EXPECT_CONTAINS(fault("a.zst", "not compressed"), "corrupt Zstandard data");
  std::string flipped = gzip(text);
  flipped[flipped.size() - 6] = static_cast<char>(flipped[flipped.size() - 6] ^ 1);
  EXPECT_CONTAINS(fault("a.gz", flipped), "corrupt gzip data (incorrect data check)");
}

TEST(Decompressor, RefusesFilesThatExpandWithoutMeasure) {
  const TempFolder folder;
  const std::string zeros = zstd(std::string(size_t{64} << 20, 'x'));
  std::string bomb;
  for (int i = 0; i < 20; ++i) bomb += zeros;
  const auto path = folder.write("a.zst", bomb);
  EXPECT_CONTAINS(message_of<FormatError>([&] {
                    const auto input = open_bytes(path);
                    std::string block(size_t{16} << 20, '\0');
                    while (input->read(block) > 0) {
                    }
                  }),
                  "expands to more than 1000 times its size");
}

TEST(TextSource, DocumentsOfCompressedFilesAreThoseOfTheirContents) {
  const TempFolder folder;
  const std::string lines = numbered_lines(500) + "\n\nlast paragraph\nwithout end";
  folder.write("plain/a.txt", lines);
  folder.write("gz/a.txt.gz", gzip(lines));
  folder.write("zst/a.txt.zst", zstd(lines));
  for (const DocumentMode mode : {DocumentMode::file, DocumentMode::line, DocumentMode::paragraph}) {
    const auto read = [&](const char* name, int64_t chunk_bytes) {
      return texts_of(TextSource({.paths = {folder / name}, .mode = mode}), chunk_bytes);
    };
    const auto expected = read("plain", 1 << 20);
    for (const int64_t chunk_bytes : {1, 100, 5000, 1 << 20}) {
      EXPECT_EQ(read("gz", chunk_bytes), expected);
      EXPECT_EQ(read("zst", chunk_bytes), expected);
    }
  }
}

TEST(TextSource, ErrorsOfCompressedJsonLinesNameTheLine) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"good\"}\n";
  const TextSource source({.paths = {folder.write("a.jsonl.gz", gzip(lines + "bad\n"))}});
  EXPECT_CONTAINS(message_of<FormatError>([&] { texts_of(source, 64); }), "a.jsonl.gz:101: invalid JSON");
}

TEST(TextSource, CompressedChunksContinueFromAnyBoundary) {
  const TempFolder folder;
  const TextSource source(
      {.paths = {folder.write("a.txt.zst", zstd(numbered_lines(300)))}, .mode = DocumentMode::line});
  std::vector<TextChunk> all;
  const auto chunks = source.chunks(0, 100);
  while (auto chunk = chunks->next()) all.push_back(std::move(*chunk));
  ASSERT_GT(all.size(), 20U);
  for (const TextChunk& chunk : all) {
    const auto again = source.chunks(0, 100, chunk.begin)->next();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->end, chunk.end);
    EXPECT_EQ(*again->text, *chunk.text);
  }
}

}  // namespace
}  // namespace stepforge::testing
