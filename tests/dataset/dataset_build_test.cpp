// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/dataset_build.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stepforge/base/staged.h"
#include "tests/dataset/test_support.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// Builds pairs from lines, with documents that repeat, are too short or are malformed.
class DatasetBuildTest : public ::testing::Test {
 protected:
  static std::string many_lines() {
    std::string text;
    for (int i = 0; i < 1500; ++i) {
      text += format("{{\"text\": \"line {}\"}}\n", i % 1000);
      if (i % 100 == 7) text += "{\"text\": \"x\"}\n{\"no\": 1}\n";
    }
    return text;
  }

  /// Calls `stop` once half of the text is done. Returns what build_dataset() returns.
  bool build(const std::string& name, const std::function<void()>& stop = {}, bool overwrite = false) {
    const TextSource source({.paths = {folder_ / "in.jsonl"}});
    const PlainText records(*tokenizer_, {}, {.min_bytes = 3});
    first_report_ = -1;
    return build_dataset(DatasetBuild(source, records, options_), outputs(name), overwrite,
                         [&](const TokenizeProgress& progress) {
                           if (first_report_ < 0) first_report_ = progress.bytes_done;
                           if (stop && 2 * progress.bytes_done > progress.bytes_total) stop();
                         });
  }

  DatasetOutput outputs(const std::string& name) const { return {folder_ / name, folder_ / (name + "-v")}; }

  void stop_in_the_middle(const std::string& name) {
    EXPECT_THROW(build(name, [] { throw Error("interrupted"); }), Error);
    EXPECT_FALSE(fs::exists(folder_ / (name + ".idx")));
    EXPECT_FALSE(fs::exists(folder_ / (name + ".bin")));
    EXPECT_TRUE(fs::exists(folder_ / (name + ".stepforge-partial")));
  }

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) names.insert(entry.path().filename());
    return names;
  }

  std::map<std::string, std::string> files_of(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const char* suffix : {".bin", ".idx", ".json", "-v.bin", "-v.idx", "-v.json"})
      files[suffix] = read_file(folder_ / (name + suffix));
    return files;
  }

  void expect_as_built_at_once(const std::string& name) {
    EXPECT_EQ(names(), (std::set<std::string>{"in.jsonl", name + ".bin", name + ".idx", name + ".json",
                                              name + "-v.bin", name + "-v.idx", name + "-v.json"}));
    const auto files = files_of(name);
    EXPECT_TRUE(build("whole"));
    EXPECT_EQ(files, files_of("whole"));
    remove_pairs("whole");
  }

  void remove_pairs(const std::string& name) {
    for (const auto& [suffix, unused] : files_of(name)) fs::remove(folder_ / (name + suffix));
  }

  TempFolder folder_;
  fs::path input_ = folder_.write("in.jsonl", many_lines());
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
  TokenizeOptions options_{.workers = 2,
                           .split = {.fraction = 0.2, .seed = 1},
                           .deduplicate = true,
                           .max_bad_records = 15,
                           .chunk_bytes = 500,
                           .save_bytes = 8000};
  int64_t first_report_ = -1;
};

TEST_F(DatasetBuildTest, ReportsWhatItDroppedAndWhy) {
  EXPECT_TRUE(build("pair"));
  const DatasetDescription description = read_description_file(folder_ / "pair.json");
  const TokenizeResult& report = description.report;
  EXPECT_EQ(report.train.documents + report.validation.documents, 1000);
  EXPECT_EQ(description.statistics, report.train);
  EXPECT_EQ(read_description_file(folder_ / "pair-v.json").statistics, report.validation);
  EXPECT_EQ(report.dropped.at(kDuplicate).documents, 500);
  EXPECT_EQ(report.dropped.at(kDuplicate).tokens, 10 * 7 + 90 * 8 + 400 * 9);
  EXPECT_EQ(report.dropped.at("min_bytes"), (LostText{.documents = 15, .text_bytes = 15}));
  EXPECT_EQ(report.dropped.at(kMalformed).documents, 15);
  ASSERT_EQ(report.bad_records.size(), kNamedRecords);
  EXPECT_CONTAINS(report.bad_records[0], "in.jsonl:10: no field \"text\"");
  EXPECT_EQ(report.lengths[3], 10) << "line 0 to line 9 have 7 tokens each";
  EXPECT_EQ(report.lengths[4], 990);
  EXPECT_EQ(description.files.at(0).hash, file_hash(input_));
  EXPECT_EQ(description.options["records"]["filter"]["min_bytes"], 3);
}

TEST_F(DatasetBuildTest, AllWorkersAndChunksMakeTheSameFiles) {
  options_.workers = 1;
  EXPECT_TRUE(build("pair"));
  const auto files = files_of("pair");
  for (const int64_t chunk : {1, 5000, 1 << 20}) {
    options_.workers = 3;
    options_.chunk_bytes = chunk;
    EXPECT_TRUE(build("pair", {}, true));
    EXPECT_EQ(files_of("pair"), files) << chunk;
  }
}

TEST_F(DatasetBuildTest, IsContinuedAfterAKill) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    build("pair", [] { kill(getpid(), SIGKILL); });
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(folder_ / "pair.idx"));
  EXPECT_TRUE(build("pair"));
  EXPECT_GT(first_report_, file_bytes(input_) / 2 - 10000);
  expect_as_built_at_once("pair");
}

TEST_F(DatasetBuildTest, StartsAgainIfAnythingItDependsOnChanged) {
  stop_in_the_middle("pair");
  options_.split.seed = 2;
  EXPECT_TRUE(build("pair"));
  EXPECT_EQ(first_report_, 0) << "other options";
  expect_as_built_at_once("pair");
  remove_pairs("pair");
  stop_in_the_middle("pair");
  std::ofstream(input_, std::ios::app) << "{\"text\": \"one more\"}\n";
  EXPECT_TRUE(build("pair"));
  EXPECT_EQ(first_report_, 0) << "other text";
  expect_as_built_at_once("pair");
}

TEST_F(DatasetBuildTest, StartsAgainIfWhatWasSavedIsDamaged) {
  const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> damages = {
      {"position.json", [](const fs::path& path) { fs::resize_file(path, 30); }},
      {"position.json",
       [](const fs::path& path) {
         std::string text = read_file(path);
         text[text.find("\"byte\": ") + 8] ^= 1;
         write_file_atomic(path, text);
       }},
      {"texts.part", [](const fs::path& path) { fs::resize_file(path, 16); }},
      {"texts.part",
       [](const fs::path& path) {
         std::string bytes = read_file(path);
         bytes[100] ^= 1;
         write_file_atomic(path, bytes);
       }},
      {"validation.lengths.part", [](const fs::path& path) { fs::remove(path); }},
  };
  for (const auto& [name, damage] : damages) {
    SCOPED_TRACE(name);
    stop_in_the_middle("pair");
    damage(folder_ / "pair.stepforge-partial" / name);
    EXPECT_TRUE(build("pair"));
    EXPECT_EQ(first_report_, 0);
    expect_as_built_at_once("pair");
    remove_pairs("pair");
  }
}

TEST_F(DatasetBuildTest, FinishesThePublicationThatAKillInterrupted) {
  EXPECT_TRUE(build("other"));
  EXPECT_TRUE(build("pair"));
  const auto files = files_of("pair");
  // As if killed after the validation pair and the training .bin had their names.
  const fs::path partial = folder_ / "pair.stepforge-partial";
  fs::create_directory(partial);
  fs::rename(folder_ / "pair.idx", partial / "train.idx");
  fs::rename(folder_ / "pair.json", partial / "train.json");
  const std::string build_name = read_description_file(partial / "train.json").build;
  folder_.write("pair.stepforge-partial/finished.json", format("{{\"build\": \"{}\"}}", build_name));
  EXPECT_TRUE(build("pair"));
  EXPECT_EQ(first_report_, -1) << "nothing is tokenized again";
  EXPECT_EQ(files_of("pair"), files);
  EXPECT_FALSE(fs::exists(partial));
}

TEST_F(DatasetBuildTest, AnOutputThatExistsIsKeptUnlessItIsToBeReplaced) {
  EXPECT_TRUE(build("pair"));
  const auto files = files_of("pair");
  EXPECT_FALSE(build("pair")) << "already built";
  EXPECT_EQ(first_report_, -1);
  options_.split.seed = 2;
  EXPECT_CONTAINS(message_of<UsageError>([&] { build("pair"); }), "pair.idx exists");
  EXPECT_EQ(files_of("pair"), files);
  EXPECT_FALSE(names().contains("pair.stepforge-partial"));
  EXPECT_TRUE(build("pair", {}, true));
  EXPECT_NE(files_of("pair").at("-v.bin"), files.at("-v.bin"));
  fs::resize_file(folder_ / "pair.bin", 5);
  EXPECT_CONTAINS(message_of<UsageError>([&] { build("pair"); }), "pair.idx exists");
}

TEST_F(DatasetBuildTest, WhatTheUserHasUnderTheNamesOfAPairIsKept) {
  for (const char* name : {"pair.json", "pair.bin", "pair-v.json", "pair.mask"}) {
    folder_.write(name, "the user's");
    EXPECT_CONTAINS(message_of<UsageError>([&] { build("pair"); }), std::string(name) + " exists");
    EXPECT_EQ(read_file(folder_ / name), "the user's");
    fs::remove(folder_ / name);
  }
  folder_.write("pair.partial/mine", "x");
  folder_.write("pair.lock", "x");
  EXPECT_TRUE(build("pair"));
  EXPECT_TRUE(fs::exists(folder_ / "pair.partial/mine"));
  EXPECT_TRUE(fs::exists(folder_ / "pair.lock"));
}

TEST_F(DatasetBuildTest, OneBadRecordMoreThanAllowedStopsIt) {
  options_.max_bad_records = 14;
  const std::string message = message_of<FormatError>([&] { build("pair"); });
  EXPECT_CONTAINS(message, "more than 14 malformed records", "the first: ", "in.jsonl:10: no field");
  EXPECT_EQ(names(), (std::set<std::string>{"in.jsonl"}));
  options_.max_bad_records = 0;
  EXPECT_CONTAINS(message_of<FormatError>([&] { build("pair"); }), "in.jsonl:10: no field");
}

TEST_F(DatasetBuildTest, HowManyBadRecordsAreAllowedMakesNoOtherBuild) {
  EXPECT_TRUE(build("pair"));
  options_.max_bad_records = 20;
  EXPECT_FALSE(build("pair")) << "already built";
  options_.max_bad_records = 14;
  EXPECT_CONTAINS(message_of<FormatError>([&] { build("pair"); }), "more than 14 malformed records",
                  "the first: ", "in.jsonl:10: no field");
  EXPECT_TRUE(fs::exists(folder_ / "pair.idx"));
}

TEST_F(DatasetBuildTest, AFilterThatDropsEverythingIsNamed) {
  const TextSource source({.paths = {input_}});
  const PlainText records(*tokenizer_, {}, {.min_bytes = 1000});
  EXPECT_CONTAINS(message_of<UsageError>([&] {
                    build_dataset(DatasetBuild(source, records, options_), outputs("pair"), false, {});
                  }),
                  "contains no document that is kept; dropped, malformed: 15 documents; dropped, min_bytes");
}

}  // namespace
}  // namespace stepforge::testing
