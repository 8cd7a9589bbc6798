// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/path_pattern.h"

#include <string>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class PathPatternTest : public ::testing::Test {
 protected:
  /// What a pattern inside of the folder stands for, relative to it.
  Names expand(const std::string& pattern) const {
    Names names;
    for (const fs::path& path : expand_path(folder_ / pattern))
      names.push_back(path.lexically_relative(folder_.path()));
    return names;
  }
  std::string message(const std::string& pattern) const {
    return message_of<UsageError>([&] { expand_path(folder_ / pattern); });
  }

  TempFolder folder_;
};

TEST_F(PathPatternTest, MatchesInsideOfNamesInSortedOrder) {
  for (const char* name :
       {"b2.txt", "b10.txt", "a.txt", "c.md", ".hidden.txt", "deep/d.txt", "deep/.x/e.txt"})
    folder_.write(name, "x");
  EXPECT_EQ(expand("*.txt"), (Names{"a.txt", "b10.txt", "b2.txt"}));
  EXPECT_EQ(expand("b?.txt"), (Names{"b2.txt"}));
  EXPECT_EQ(expand("[a-b].txt"), (Names{"a.txt"}));
  EXPECT_EQ(expand("*/*.txt"), (Names{"deep/d.txt"}));
  EXPECT_EQ(expand(".*.txt"), (Names{".hidden.txt"}));
  EXPECT_EQ(expand("d*"), (Names{"deep"}));
  EXPECT_EQ(expand("d*/d.txt"), (Names{"deep/d.txt"}));
}

TEST_F(PathPatternTest, TwoStarsMatchAnyNumberOfFolders) {
  for (const char* name : {"a.txt", "x/b.txt", "x/y/c.txt", "x/y/d.md", "x/.git/e.txt"})
    folder_.write(name, "x");
  EXPECT_EQ(expand("**/*.txt"), (Names{"a.txt", "x/b.txt", "x/y/c.txt"}));
  EXPECT_EQ(expand("x/**/*.txt"), (Names{"x/b.txt", "x/y/c.txt"}));
  EXPECT_EQ(expand("**"), (Names{"a.txt", "x/b.txt", "x/y/c.txt", "x/y/d.md"}));
  EXPECT_EQ(expand("**/y/**"), (Names{"x/y/c.txt", "x/y/d.md"}));
  EXPECT_EQ(expand("**/**/c.txt"), (Names{"x/y/c.txt"}));
}

TEST_F(PathPatternTest, TwoStarsDoNotFollowLinksToFolders) {
  folder_.write("x/a.txt", "x");
  fs::create_symlink("..", folder_ / "x/loop");
  EXPECT_EQ(expand("**/a.txt"), (Names{"x/a.txt"}));
}

TEST_F(PathPatternTest, AnExistingPathIsTakenLiterally) {
  folder_.write("a*.txt", "x");
  folder_.write("ab.txt", "x");
  folder_.write("c[1].txt", "x");
  EXPECT_FALSE(is_path_pattern(folder_ / "a*.txt"));
  EXPECT_EQ(expand("a*.txt"), (Names{"a*.txt"}));
  EXPECT_EQ(expand("c[1].txt"), (Names{"c[1].txt"}));
  EXPECT_EQ(expand("missing.txt"), (Names{"missing.txt"}));  // whoever opens it complains
}

TEST_F(PathPatternTest, NamesThePatternAndTheNearestFolderIfNothingMatches) {
  folder_.write("books/a.txt", "x");
  EXPECT_CONTAINS(message("books/*.md"), "nothing matches", "books/*.md; the nearest folder that exists is",
                  (folder_ / "books").string());
  const std::string missing = message("boks/de/*.txt");
  EXPECT_CONTAINS(missing, "the nearest folder that exists is " + folder_.path().string());
  EXPECT_EQ(missing.find("exists is " + (folder_ / "boks").string()), std::string::npos);
  EXPECT_CONTAINS(message("a*/b.txt"), "the nearest folder that exists is " + folder_.path().string());
}

TEST(PathPattern, RefusesRemoteAddressesWithTheRemedy) {
  const auto message = [](const std::string& address) {
    return message_of<UsageError>([&] { expand_path(address); });
  };
  EXPECT_CONTAINS(message("s3://bucket/a/*.txt"), "s3://bucket/a/*.txt is a remote address",
                  "aws s3 cp --recursive s3://bucket/a/*.txt FOLDER");
  EXPECT_CONTAINS(message("gs://bucket/a"), "gcloud storage cp -r gs://bucket/a");
  EXPECT_CONTAINS(message("https://example.org/a.jsonl"), "curl -LO https://example.org/a.jsonl");
  EXPECT_CONTAINS(message("hf://datasets/roneneldan/TinyStories"), "hf download --repo-type dataset",
                  "~/.cache/huggingface/hub/datasets--");
  EXPECT_CONTAINS(message("azure://a/b"), "download it first, and name the local file");
}

}  // namespace
}  // namespace stepforge::testing
