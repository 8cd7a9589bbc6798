// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/files.h"

#include <utility>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "stepforge/base/error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

TEST(ReadFile, ReturnsEveryByte) {
  const TempFolder folder;
  const std::string bytes("a\0b\r\n\xff", 6);
  write_text(folder / "f", bytes);
  EXPECT_EQ(read_file(folder / "f"), bytes);
  write_text(folder / "empty", "");
  EXPECT_EQ(read_file(folder / "empty"), "");
}

TEST(ReadFile, RefusesMoreThanTheLimitAndNamesTheFile) {
  const TempFolder folder;
  write_text(folder / "f", "12345");
  EXPECT_EQ(read_file(folder / "f", 5), "12345");
  const std::string message = message_of<Error>([&] { read_file(folder / "f", 4); });
  EXPECT_CONTAINS(message, (folder / "f").string());
  EXPECT_CONTAINS(message, "5 bytes");
}

TEST(ReadFile, RefusesAnythingButARegularFile) {
  const TempFolder folder;
  EXPECT_THROW(read_file(folder / "missing"), Error);
  EXPECT_CONTAINS(message_of<Error>([&] { read_file(folder.path()); }), "not a regular file");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_CONTAINS(message_of<Error>([&] { read_file(folder / "pipe"); }), "not a regular file");
}

TEST(FileReader, ReadsAtAnyOffsetAndCanBeMoved) {
  const TempFolder folder;
  write_text(folder / "f", "content");
  FileReader first(folder / "f");
  const FileReader second = std::move(first);
  EXPECT_EQ(second.size(), 7);
  EXPECT_EQ(second.text(2, 5), "nte");
  EXPECT_EQ(second.text(7, 7), "");
  EXPECT_THROW(FileReader(folder.path()), Error);
}

TEST(FileReader, ATruncatedFileIsAnErrorThatNamesIt) {
  const TempFolder folder;
  write_text(folder / "f", std::string(100'000, 'x'));
  const FileReader reader(folder / "f");
  fs::resize_file(folder / "f", 50'000);
  const std::string message = message_of<Error>([&] { reader.text(0, 100'000); });
  EXPECT_CONTAINS(message, (folder / "f").string());
  EXPECT_CONTAINS(message, "became shorter while it was read: it ends at byte 50000 and had 100000");
}

TEST(ContentHash, IsXxh3AndDependsOnTheContent) {
  // XXH3_128bits of no bytes, from the algorithm's published test vectors.
  EXPECT_EQ(content_hash(std::string_view("")), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(content_hash(std::string_view("a")), content_hash(std::string_view("b")));
}

TEST(ContentHash, TheHashOfAFileIsThatOfItsBytes) {
  const TempFolder folder;
  std::string bytes((size_t{5} << 18) + 3, 'x');  // more than one chunk
  bytes.back() = 'y';
  write_text(folder / "f", bytes);
  EXPECT_EQ(file_hash(folder / "f"), content_hash(bytes));
}

TEST(SetAside, UsesTheFirstFreeName) {
  const TempFolder folder;
  for (const char* name : {"a.old", "a.old-2", "a.old-3"}) {
    write_text(folder / "a", name);
    EXPECT_EQ(set_aside(folder / "a", ".old"), folder / name);
    EXPECT_EQ(read_file(folder / name), name);
    EXPECT_FALSE(fs::exists(folder / "a"));
  }
  EXPECT_CONTAINS(message_of<Error>([&] { set_aside(folder / "a", ".old"); }), "cannot rename");
}

}  // namespace
}  // namespace stepforge::testing
