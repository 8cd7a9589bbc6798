// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/file_writer.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

TEST(FileWriter, AFullDiskIsAnErrorThatNamesThePath) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  FileWriter writer("/dev/full");
  const std::string message = message_of<Error>([&] { writer.write("bytes"); });
  EXPECT_CONTAINS(message, "/dev/full");
  EXPECT_CONTAINS(message, "No space left");
}

TEST(FileWriter, CountsTheBytesWritten) {
  const TempFolder folder;
  FileWriter writer(folder / "f");
  writer.write("abc");
  writer.write("de");
  EXPECT_EQ(writer.written(), 5);
  writer.finish();
  EXPECT_EQ(read_file(folder / "f"), "abcde");
}

TEST(FileWriter, ContinuesAfterTheKeptBytes) {
  const TempFolder folder;
  write_text(folder / "f", "abcdef");
  FileWriter writer(folder / "f", 3);
  writer.write("xy");
  writer.finish();
  EXPECT_EQ(read_file(folder / "f"), "abcxy");
  EXPECT_THROW(FileWriter(folder / "f", 6), Error);
}

TEST(FileWriter, DirectWritesOfUnalignedBytesGoThroughTheCache) {
  const TempFolder folder;
  const std::string bytes(3 * FileWriter::kDirectBlock + 5, 'x');
  FileWriter writer(folder / "f");
  writer.set_direct(true);
  writer.write(bytes.data() + 1, bytes.size() - 1);
  writer.write("end");
  writer.finish();
  EXPECT_EQ(read_file(folder / "f"), bytes.substr(1) + "end");
}

TEST(FileWriter, AppendsToWhatIsThere) {
  const TempFolder folder;
  write_text(folder / "f", "abc");
  FileWriter first = FileWriter::append_to(folder / "f");
  FileWriter second = FileWriter::append_to(folder / "f");
  first.write("1");
  second.write("2");
  first.write("3");
  EXPECT_EQ(read_file(folder / "f"), "abc123");
}

TEST(FileWriter, NeverWritesThroughALink) {
  const TempFolder folder;
  write_text(folder / "precious", "data");
  fs::create_symlink(folder / "precious", folder / "f");
  fs::create_symlink(folder / "nothing", folder / "dangling");
  const auto expect_refused = [](const auto& action) {
    EXPECT_CONTAINS(message_of<UsageError>(action), "is a symbolic link", "remove the link");
  };
  expect_refused([&] { FileWriter(folder / "f"); });
  expect_refused([&] { FileWriter(folder / "f", 2); });
  expect_refused([&] { FileWriter::append_to(folder / "f"); });
  expect_refused([&] { FileWriter(folder / "dangling"); });
  EXPECT_EQ(read_file(folder / "precious"), "data");
  EXPECT_FALSE(fs::exists(folder / "nothing"));
}

TEST(FileWriter, DoesNotWaitForTheReaderOfAPipe) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_CONTAINS(message_of<Error>([&] { FileWriter::append_to(folder / "pipe"); }), "pipe");
}

TEST(FileWriter, NewFilesHaveThePermissionsThatTheUmaskLeaves) {
  const TempFolder folder;
  const mode_t before = umask(0002);
  FileWriter(folder / "shared").finish();
  umask(0077);
  FileWriter(folder / "own").finish();
  umask(before);
  EXPECT_EQ(fs::status(folder / "shared").permissions(), fs::perms(0664));
  EXPECT_EQ(fs::status(folder / "own").permissions(), fs::perms(0600));
}

TEST(CreateFolderInside, MakesWhatIsMissingAndKeepsWhatIsThere) {
  const TempFolder folder;
  create_folder_inside(folder / "run", "logs/launch");
  folder.write("run/logs/launch/f", "x");
  create_folder_inside(folder / "run", "logs/launch");
  EXPECT_TRUE(fs::exists(folder / "run/logs/launch/f"));
  EXPECT_CONTAINS(message_of<Error>([&] { create_folder_inside(folder / "run/logs", "launch/f"); }),
                  "launch/f");
}

TEST(CreateFolderInside, RefusesALinkBelowTheBaseOnly) {
  const TempFolder folder;
  fs::create_directories(folder / "elsewhere");
  fs::create_directories(folder / "run");
  fs::create_directory_symlink(folder / "elsewhere", folder / "run" / "logs");
  fs::create_directory_symlink(folder / "run", folder / "named by the user");
  const std::string message =
      message_of<UsageError>([&] { create_folder_inside(folder / "run", "logs/launch"); });
  EXPECT_CONTAINS(message, (folder / "run" / "logs").string() + " is a symbolic link",
                  "put a folder in its place");
  EXPECT_TRUE(fs::is_empty(folder / "elsewhere"));
  create_folder_inside(folder / "named by the user", "tokenizer");
  EXPECT_TRUE(fs::is_directory(folder / "run/tokenizer"));
}

}  // namespace
}  // namespace stepforge::testing
