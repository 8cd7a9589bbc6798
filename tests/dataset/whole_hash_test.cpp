// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/whole_hash.h"

#include <chrono>
#include <filesystem>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "tests/dataset/test_support.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// As if it had been written a while ago.
void age(const fs::path& file, int seconds) {
  fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
}

TEST(WholeHash, IsComputedOnceWhileTheFileKeepsSizeAndTime) {
  const TempFolder folder;
  const fs::path file = folder.write("a.bin", "abcdef");
  age(file, 100);
  int chunks = 0;
  const auto hash = [&] { return whole_hash(file, folder / "hashes", [&] { ++chunks; }); };
  EXPECT_EQ(hash(), file_hash(file));
  const int first = chunks;
  EXPECT_GT(first, 0);
  EXPECT_EQ(hash(), file_hash(file));
  EXPECT_EQ(chunks, first);
  folder.write("a.bin", "abcdeX");
  age(file, 50);
  EXPECT_EQ(hash(), file_hash(file));
  EXPECT_GT(chunks, first);
}

TEST(WholeHash, OfAFileThatJustChangedIsNotKept) {
  const TempFolder folder;
  const fs::path file = folder.write("a.bin", "abcdef");
  whole_hash(file, folder / "hashes");
  EXPECT_FALSE(fs::exists(folder / "hashes"));
}

}  // namespace
}  // namespace stepforge::testing
