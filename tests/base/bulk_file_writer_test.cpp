// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/bulk_file_writer.h"

#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = BulkFileWriter::kPieceBytes;

/// No two blocks of it are equal.
std::string numbered_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>((i ^ (i >> 8) ^ (i >> 16)) & 0xFF);
  return bytes;
}

/// Gives `bytes` to a writer in parts of at most `part` bytes; returns the hash.
std::string write_in_parts(const fs::path& path, std::string_view bytes, size_t part) {
  BulkFileWriter writer(path);
  for (size_t begin = 0; begin < bytes.size(); begin += part)
    writer.write(std::as_bytes(std::span(bytes.substr(begin, part))));
  EXPECT_EQ(writer.written(), std::ssize(bytes));
  return writer.finish();
}

TEST(BulkFileWriter, FilesOfAnyLengthHoldTheBytesGivenAndHaveTheirHash) {
  const TempFolder folder;
  for (const size_t length :
       {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 5}) {
    const std::string bytes = numbered_bytes(length);
    for (const size_t part : {size_t{1000}, kPiece, 2 * kPiece + 3}) {
      EXPECT_EQ(write_in_parts(folder / "f", bytes, part), content_hash(bytes)) << length << " by " << part;
      EXPECT_TRUE(read_file(folder / "f") == bytes) << length << " by " << part;
    }
  }
}

/// Whether the page cache holds the block of a file at `offset`; nullopt if the file system does not say.
std::optional<bool> is_cached(const fs::path& path, size_t offset) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::array<char, 4096> block{};
  const iovec target = {block.data(), block.size()};
  const ssize_t read = preadv2(descriptor, &target, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  const int reason = errno;
  close(descriptor);
  if (read < 0 && reason != EAGAIN) return std::nullopt;
  return read > 0;
}

/// Whether files can be outside the page cache there: not in a file system that is in memory.
bool can_bypass_cache(const fs::path& folder) {
  FileWriter(folder / "probe").write(numbered_bytes(kPiece));
  const int descriptor = open((folder / "probe").c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (descriptor < 0) return false;
  fsync(descriptor);
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  close(descriptor);
  return is_cached(folder / "probe", 0) == false;
}

TEST(BulkFileWriter, WhatItWritesDoesNotFillThePageCache) {
  const TempFolder folder;
  if (!can_bypass_cache(folder.path())) GTEST_SKIP() << "the folder of temporary files is in memory";
  write_in_parts(folder / "f", numbered_bytes(4 * kPiece), kPiece);
  for (size_t piece = 0; piece < 4; ++piece) EXPECT_EQ(is_cached(folder / "f", piece * kPiece), false);
}

TEST(BulkFileWriter, AFullDiskIsAnErrorThatNamesThePath) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const std::string message =
      message_of<Error>([] { write_in_parts("/dev/full", numbered_bytes(kPiece + 1), kPiece); });
  EXPECT_CONTAINS(message, "/dev/full");
  EXPECT_CONTAINS(message, "No space left");
}

}  // namespace
}  // namespace stepforge::testing
