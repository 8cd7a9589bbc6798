// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/whole_hash.h"

#include <chrono>
#include <filesystem>

#include <gtest/gtest.h>

#include "stepforge/base/files.h"
#include "stepforge/data/concat_rows.h"
#include "stepforge/data/row_stream.h"
#include "tests/data/test_support.h"

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

TEST(WholeHash, AStreamKnowsATokenThatItsFingerprintDoesNotSample) {
  const TempFolder folder;
  const auto content = [&](int32_t in_the_middle) {
    std::vector<int32_t> tokens(3'000'000, 7);
    tokens[1'405'023] = in_the_middle;  // between two samples of token_files.cpp
    const auto dataset = write_dataset(folder / "pair", {tokens});
    const auto rows = std::make_shared<ConcatRows>(dataset, 8, 100, std::nullopt);
    const auto stream = RowStream::mixture({{rows, 1.0}}, 1, true);
    return std::pair(stream->fingerprint(),
                     stream->content([](const fs::path& file) { return file_hash(file); }));
  };
  const auto before = content(7);
  const auto after = content(8);
  EXPECT_EQ(before.first, after.first) << "a sample";
  EXPECT_NE(before.second, after.second);
}

}  // namespace
}  // namespace stepforge::testing
