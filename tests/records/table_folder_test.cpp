// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/table_folder.h"

#include <filesystem>

#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// A folder of empty tables.
class TableFolder : public ::testing::Test {
 protected:
  void add(const std::string& name) { tables_.push_back(folder_.write(name, "")); }

  FolderChoice choose() const { return choose_files(folder_.path(), tables_); }
  /// Names of the tables that are chosen, below the folder.
  std::vector<std::string> chosen() const {
    std::vector<std::string> names;
    for (const fs::path& path : choose().chosen)
      names.push_back(path.lexically_relative(folder_.path()).string());
    return names;
  }
  template <typename Exception>
  std::string refusal() const {
    return message_of<Exception>([&] { choose(); });
  }

  TempFolder folder_;
  std::vector<fs::path> tables_;
};

using Names = std::vector<std::string>;

TEST(SplitOf, IsFoundInTheNamesOfTheHubAndTheCache) {
  EXPECT_EQ(split_of("train-00000-of-00002.parquet"), "train");
  EXPECT_EQ(split_of("test-00000-of-00001-a09b74b3ef9c3b56.parquet"), "test");
  EXPECT_EQ(split_of("data/train_sft-00000-of-00003.parquet"), "train_sft");
  EXPECT_EQ(split_of("news-validation.arrow"), "validation");
  EXPECT_EQ(split_of("my-news-train-00000-of-00002.arrow"), "train");
  EXPECT_EQ(split_of("default/test/0000.parquet"), "test");
  EXPECT_EQ(split_of("train/data-00000-of-00001.arrow"), "train");
}

TEST(SplitOf, OtherNamesHaveNone) {
  for (const char* name :
       {"books.parquet", "part-0001.parquet", "-of-.parquet", "a-0000-of-00001.parquet", "protest.parquet",
        "books-00000-of-00002.jsonl", "unit-test.txt", "dev-guide.md", "attest.jsonl"})
    EXPECT_EQ(split_of(name), "") << name;
}

TEST(SplitOf, IsTheSameInEveryFormat) {
  for (const char* name :
       {"test.jsonl", "test.jsonl.gz", "mmlu_test.csv", "Test-00000-of-00001.jsonl.zst", "test_001.parquet",
        "testing.jsonl", "test.txt", "data/test/a.md", "test-2.tsv", "test.en.jsonl"})
    EXPECT_EQ(split_of(name), "test") << name;
  for (const char* name : {"training.parquet", "train_1.jsonl", "train.md", "train/eval-notes.txt"})
    EXPECT_EQ(split_of(name), "train") << name;
}

TEST_F(TableFolder, OtherFormatsFollowTheSameRule) {
  add("data/dev.jsonl");
  add("data/test-00000-of-00001.jsonl");
  add("data/train-00000-of-00001.jsonl");
  add("data/validation.csv.gz");
  EXPECT_EQ(chosen(), Names{"data/train-00000-of-00001.jsonl"});
  EXPECT_CONTAINS(choose().note, "(others: dev, test, validation)");
}

TEST_F(TableFolder, BesideFilesWithoutASplitHeldOutOnesAreNotRead) {
  add("corpus.jsonl");
  add("test.jsonl");
  add("eval/a.jsonl");
  EXPECT_EQ(chosen(), Names{"corpus.jsonl"});
  EXPECT_CONTAINS(choose().note, "that name no split are read (splits: eval, test)");
}

TEST_F(TableFolder, CardsAndLicencesAreKnownByNameOrHeader) {
  for (const char* name : {"README.md", "readme_zh.md", "README.txt", "LICENSE.txt", "licence.md",
                           "LICENSE-APACHE.txt", "COPYING.txt", "sub/README.md"})
    EXPECT_TRUE(is_card_or_licence(folder_.write(name, "x"))) << name;
  EXPECT_TRUE(is_card_or_licence(folder_.write("card.md", "---\nlicense: mit\n---\n# A")));
  EXPECT_FALSE(is_card_or_licence(folder_.write("post.md", "---\ntitle: A day\n---\n# A")));
  EXPECT_FALSE(is_card_or_licence(folder_.write("readme.jsonl", "{}")));
  EXPECT_FALSE(is_card_or_licence(folder_.write("licensed.md", "x")));
}

TEST_F(TableFolder, TakesAllTablesWithoutSplits) {
  add("a.parquet");
  add("deep/b.parquet");
  EXPECT_EQ(chosen(), (Names{"a.parquet", "deep/b.parquet"}));
  EXPECT_EQ(choose().note, "");
}

TEST_F(TableFolder, TakesTheSplitTrainAndSaysSo) {
  add("data/test-00000-of-00001.parquet");
  add("data/train-00000-of-00002.parquet");
  add("data/train-00001-of-00002.parquet");
  add("data/validation-00000-of-00001.parquet");
  EXPECT_EQ(chosen(), (Names{"data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"}));
  EXPECT_EQ(choose().left_out.size(), 2U);
  EXPECT_CONTAINS(choose().note, "the split \"train\" of /", "is read (others: test, validation)");
}

TEST_F(TableFolder, ASingleSplitIsTakenWhateverItsName) {
  add("test-00000-of-00001.parquet");
  EXPECT_EQ(chosen(), Names{"test-00000-of-00001.parquet"});
}

TEST_F(TableFolder, RefusesToMixSplits) {
  add("train_gen-00000-of-00001.parquet");
  add("train_sft-00000-of-00001.parquet");
  EXPECT_CONTAINS(refusal<UsageError>(),
                  "several splits and no \"train\" (train_gen, train_sft): name the files of one");
}

TEST_F(TableFolder, TheCopiesInTheCacheAreLeftOut) {
  folder_.write("dataset_info.json", "{}");
  add("cache-12f902a53a1df9eb.arrow");
  add("json-test.arrow");
  add("json-train.arrow");
  EXPECT_EQ(chosen(), Names{"json-train.arrow"});
}

TEST_F(TableFolder, ElsewhereACacheIsATable) {
  add("cache-misses.arrow");
  EXPECT_EQ(chosen(), Names{"cache-misses.arrow"});
}

TEST_F(TableFolder, ReadsTheFilesOfASavedDataSetOnly) {
  folder_.write(
      "state.json",
      R"({"_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": "data-00001-of-00002.arrow"}]})");
  add("data-00000-of-00002.arrow");
  add("data-00000-of-00003.arrow");  // left from an earlier save
  add("data-00001-of-00002.arrow");
  EXPECT_EQ(chosen(), (Names{"data-00000-of-00002.arrow", "data-00001-of-00002.arrow"}));
}

TEST_F(TableFolder, ReadsTheTrainingSplitOfSavedSplits) {
  for (const std::string split : {"test", "train"}) {
    folder_.write(split + "/dataset_info.json", "{}");
    folder_.write(split + "/state.json", R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})");
    add(split + "/data-00000-of-00001.arrow");
  }
  EXPECT_EQ(chosen(), Names{"train/data-00000-of-00001.arrow"});
}

TEST_F(TableFolder, RefusesAListThatLeadsOutOfTheFolder) {
  add("here/a.arrow");
  const fs::path outside = folder_.write("outside.arrow", "");
  const auto refusal_of = [&](const std::string& name) {
    folder_.write("here/state.json", R"({"_data_files": [{"filename": ")" + name + R"("}]})");
    return refusal<FormatError>();
  };
  EXPECT_CONTAINS(refusal_of("../outside.arrow"),
                  "state.json: \"_data_files[0].filename\" is \"../outside.arrow\"",
                  "must be a name without a folder");
  EXPECT_CONTAINS(refusal_of("lost.arrow"), "is not a file of this folder");
  fs::create_symlink(outside, folder_ / "here/link.arrow");
  EXPECT_CONTAINS(refusal_of("link.arrow"), "is not a file of this folder");
}

TEST_F(TableFolder, RefusesABrokenList) {
  add("a.arrow");
  for (const char* json : {"{", R"({"_data_files": 3})", R"({"_data_files": ["a.arrow"]})"}) {
    folder_.write("state.json", json);
    EXPECT_CONTAINS(refusal<FormatError>(), "state.json");
  }
  folder_.write(
      "state.json",
      R"({"_data_files": [{"filename": "a.arrow"}], "_indices_data_files": [{"filename": "i.arrow"}]})");
  EXPECT_CONTAINS(refusal<FormatError>(), "flatten_indices()");
}

TEST_F(TableFolder, TheStateOfAnotherProgramIsNotAList) {
  folder_.write("state.json", "[1]");
  add("a.arrow");
  EXPECT_EQ(chosen(), Names{"a.arrow"});
}

TEST_F(TableFolder, RefusesToReadTwoVersionsOfADataSet) {
  for (const std::string version : {"0.0.0/aa", "0.0.0/bb"}) {
    folder_.write(version + "/dataset_info.json", "{}");
    add(version + "/news-train.arrow");
  }
  EXPECT_CONTAINS(refusal<UsageError>(), "holds several data sets, perhaps versions of one (", "0.0.0/aa",
                  "0.0.0/bb", "name the folder of one");
}

}  // namespace
}  // namespace stepforge::testing
