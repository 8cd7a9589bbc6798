// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/staged.h"

#include <set>
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

using NameSet = std::set<std::string>;

NameSet names_in(const fs::path& folder) {
  NameSet names;
  for (const fs::path& path : entries_of(folder)) names.insert(path.filename());
  return names;
}

TEST(WriteFileAtomic, ReplacesTheOldFile) {
  const TempFolder folder;
  write_file_atomic(folder / "f", "old");
  write_file_atomic(folder / "f", "new");
  EXPECT_EQ(read_file(folder / "f"), "new");
}

TEST(WriteFileAtomic, NeverWritesIntoTheOldFile) {
  const TempFolder folder;
  write_file_atomic(folder / "f", "old");
  const FileReader reader(folder / "f");
  write_file_atomic(folder / "f", "new");
  EXPECT_EQ(reader.text(0, 3), "old");
}

TEST(WriteFileAtomic, FailureLeavesTheOldFileAndNothingElse) {
  const TempFolder folder;
  write_file_atomic(folder / "f", "old");
  fs::create_directories(folder / "folder" / "content");
  EXPECT_CONTAINS(message_of<Error>([&] { write_file_atomic(folder / "folder", "new"); }), "folder");
  EXPECT_CONTAINS(message_of<Error>([&] { write_file_atomic(folder / "missing" / "f", "new"); }),
                  "missing/f");
  EXPECT_EQ(read_file(folder / "f"), "old");
  EXPECT_EQ(names_in(folder.path()), (NameSet{"f", "folder"}));
}

TEST(WriteFileAtomic, ReplacesALinkAndKeepsItsTarget) {
  const TempFolder folder;
  write_text(folder / "precious", "data");
  fs::create_symlink(folder / "precious", folder / "f");
  write_file_atomic(folder / "f", "new");
  EXPECT_EQ(read_file(folder / "precious"), "data");
  EXPECT_FALSE(fs::is_symlink(folder / "f"));
  EXPECT_EQ(read_file(folder / "f"), "new");
}

TEST(WriteFileAtomic, KeepsWhatTheUserHasBesideTheFile) {
  const TempFolder folder;
  write_text(folder / "precious", "data");
  fs::create_symlink(folder / "precious", folder / "run.json.tmp");
  folder.write("f.tmp/mine", "x");
  folder.write("g.tmp", "x");
  for (const char* name : {"run.json", "f", "g"}) write_file_atomic(folder / name, "new");
  EXPECT_EQ(read_file(folder / "precious"), "data");
  EXPECT_EQ(names_in(folder.path()),
            (NameSet{"f", "f.tmp", "g", "g.tmp", "precious", "run.json", "run.json.tmp"}));
  EXPECT_TRUE(fs::exists(folder / "f.tmp/mine"));
}

TEST(WriteFileAtomic, NewFilesHaveThePermissionsThatTheUmaskLeaves) {
  const TempFolder folder;
  const mode_t before = umask(0002);
  write_file_atomic(folder / "shared", "x");
  umask(0077);
  write_file_atomic(folder / "own", "x");
  umask(before);
  EXPECT_EQ(fs::status(folder / "shared").permissions(), fs::perms(0664));
  EXPECT_EQ(fs::status(folder / "own").permissions(), fs::perms(0600));
}

TEST(Staging, RemovesTheLeftoversOfKilledProcessesAndNothingElse) {
  const TempFolder folder;
  write_text(folder / "precious", "data");
  folder.write("f.stepforge-0123abcd", "half");
  folder.write("f.stepforge-abcdef01/deep/half", "half");
  const NameSet others = {"f.stepforge-0123ABCD",     "f.stepforge-0123abcde",
                          "f.stepforge-0123abcd.txt", "f.tmp",
                          "g.stepforge-0123abcd",     "stepforge-0123abcd"};
  for (const std::string& name : others) folder.write(name, "the user's");
  fs::create_symlink(folder / "precious", folder / "f.stepforge-11111111");
  write_file_atomic(folder / "f", "new");
  NameSet expected = others;
  expected.insert({"f", "f.stepforge-11111111", "precious"});
  EXPECT_EQ(names_in(folder.path()), expected);
  EXPECT_EQ(read_file(folder / "precious"), "data");
}

TEST(Staging, LeavesAloneWhatAnotherProcessIsWriting) {
  const TempFolder folder;
  const Staging other(folder / "f", Staging::Kind::file);
  const StagedFolder other_folder(folder / "g");
  write_file_atomic(folder / "f", "new");
  const StagedFolder own(folder / "g");
  EXPECT_TRUE(fs::exists(other.path()));
  EXPECT_TRUE(fs::exists(other_folder.staging()));
  EXPECT_NE(own.staging(), other_folder.staging());
}

TEST(Staging, IsKnownByItsName) {
  const TempFolder folder;
  const Staging staging(folder / "f", Staging::Kind::file);
  EXPECT_EQ(staged_target(staging.path()), folder / "f");
  for (const char* name : {"f", "f.tmp", ".stepforge-0123abcd", "f.stepforge-0123abc"})
    EXPECT_EQ(staged_target(name), std::nullopt) << name;
}

TEST(RemoveWholeFolder, LeavesNothing) {
  const TempFolder folder;
  folder.write("step-1/deep/f", "x");
  remove_whole_folder(folder / "step-1");
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_CONTAINS(message_of<Error>([&] { remove_whole_folder(folder / "step-1"); }), "step-1");
}

TEST(StagedFolder, AppearsOnlyWhenPublished) {
  const TempFolder folder;
  const fs::path final_path = folder / "step-1";
  StagedFolder staged(final_path);
  write_text(staged.staging() / "f", "x");
  EXPECT_FALSE(fs::exists(final_path));
  staged.publish();
  EXPECT_EQ(read_file(final_path / "f"), "x");
  EXPECT_EQ(names_in(folder.path()), NameSet{"step-1"});
}

TEST(StagedFolder, IsRemovedWithoutPublish) {
  const TempFolder folder;
  {
    const StagedFolder staged(folder / "step-1");
    write_text(staged.staging() / "f", "x");
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(StagedFolder, RemovesTheLeftoversOfACrash) {
  const TempFolder folder;
  folder.write("step-1.stepforge-0123abcd/deep/stale", "half-written");
  StagedFolder staged(folder / "step-1");
  EXPECT_TRUE(fs::is_empty(staged.staging()));
  write_text(staged.staging() / "f", "x");
  staged.publish();
  EXPECT_EQ(names_in(folder.path()), NameSet{"step-1"});
  EXPECT_EQ(names_in(folder / "step-1"), NameSet{"f"});
}

TEST(StagedFolder, NeverOverwritesAPublishedFolder) {
  const TempFolder folder;
  fs::create_directories(folder / "step-1");
  write_text(folder / "step-1" / "f", "first");
  {
    StagedFolder staged(folder / "step-1");
    write_text(staged.staging() / "f", "second");
    EXPECT_THROW(staged.publish(), Error);
  }
  EXPECT_EQ(read_file(folder / "step-1" / "f"), "first");
  EXPECT_EQ(names_in(folder.path()), NameSet{"step-1"});
}

TEST(StagedFolder, DoesNotReplaceAnEmptyFolder) {
  const TempFolder folder;
  fs::create_directories(folder / "step-1");
  StagedFolder staged(folder / "step-1");
  EXPECT_CONTAINS(message_of<Error>([&] { staged.publish(); }), "exists already");
}

TEST(StagedFolder, KeepsWhatTheUserHasBesideTheFolder) {
  const TempFolder folder;
  folder.write("model.tmp/mine", "x");
  StagedFolder staged(folder / "model/");
  staged.publish();
  EXPECT_EQ(names_in(folder.path()), (NameSet{"model", "model.tmp"}));
  EXPECT_TRUE(fs::exists(folder / "model.tmp/mine"));
}

TEST(StagedFolder, FollowsNoLinkInThePlaceOfTheFolder) {
  const TempFolder folder;
  fs::create_directory_symlink(folder / "nowhere", folder / "model");
  StagedFolder staged(folder / "model");
  EXPECT_CONTAINS(message_of<Error>([&] { staged.publish(); }), "exists already");
}

TEST(StagedFolder, HasThePermissionsThatTheUmaskLeaves) {
  const TempFolder folder;
  for (const mode_t mask : {0002, 0077}) {
    const mode_t before = umask(mask);
    StagedFolder(folder / std::to_string(mask)).publish();
    umask(before);
    EXPECT_EQ(fs::status(folder / std::to_string(mask)).permissions(), fs::perms(0777 & ~mask));
  }
}

}  // namespace
}  // namespace stepforge::testing
