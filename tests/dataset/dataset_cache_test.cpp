// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/dataset_cache.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stepforge/dataset/dataset_build.h"
#include "tests/dataset/test_support.h"

namespace stepforge::testing {
namespace {

bool is_end(const TokenizeProgress& progress) {
  return progress.bytes_done == progress.bytes_total;
}

/// Counts the tokenizations that report progress.
struct CountedBuild {
  int calls = 0;
  CachedDataset open(const TextSource& source, const std::filesystem::path& cache,
                     const TokenizeOptions& options = {}) {
    return open_cached_dataset(
        source, PlainText(*tokenizer), options, cache,
        [this](const TokenizeProgress& progress) { calls += is_end(progress) ? 1 : 0; });
  }
  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
};

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

TEST(DatasetCache, TokenizesTheSameTextOnce) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  const auto first = build.open(source, folder / "cache");
  EXPECT_EQ(build.calls, 1);
  EXPECT_EQ(first.train->index().tokens(), 6);
  EXPECT_EQ(first.train_statistics, (DatasetStatistics{.documents = 1, .tokens = 6, .text_bytes = 5}));
  const TextSource moved({.paths = {folder.write("moved/b.txt", "hello")}});
  const auto second = build.open(moved, folder / "cache");
  EXPECT_EQ(build.calls, 1);
  EXPECT_EQ(second.folder, first.folder);
  EXPECT_EQ(names_in(folder / "cache").size(), 1U);  // no lock, no staging left
}

TEST(DatasetCache, AnEntryServesRunsThatAllowItsBadRecords) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.jsonl", "{\"text\": \"hello\"}\nbad\n")}});
  const auto open = [&](int64_t allowed) {
    return build.open(source, folder / "cache", {.max_bad_records = allowed});
  };
  const auto first = open(1);
  EXPECT_EQ(open(5).folder, first.folder);
  EXPECT_EQ(build.calls, 1);
  EXPECT_CONTAINS(message_of<FormatError>([&] { open(0); }),
                  "more than 0 malformed records (max_bad_records)", "the first: ", "a.jsonl:2: ");
}

TEST(DatasetCache, RebuildsIfTextOrSplitChanges) {
  const TempFolder folder;
  CountedBuild build;
  const auto open = [&](std::string_view text, const TokenizeOptions& options) {
    return build
        .open(TextSource({.paths = {folder.write("a.txt", text)}, .mode = DocumentMode::line}),
              folder / "cache", options)
        .folder;
  };
  const auto plain = open("a\nb\nc\nd\n", {});
  EXPECT_NE(open("a\nb\nc\nD\n", {}), plain);
  const auto split = open("a\nb\nc\nd\n", {.split = {.fraction = 0.5, .seed = 1}});
  EXPECT_NE(split, plain);
  EXPECT_NE(open("a\nb\nc\nd\n", {.split = {.fraction = 0.5, .seed = 2}}), split);
  EXPECT_EQ(open("a\nb\nc\nd\n", {.split = {.fraction = 0.0, .seed = 2}}), plain);
  EXPECT_EQ(open("a\nb\nc\nd\n", {.workers = 1, .chunk_bytes = 1}), plain);
}

/// The byte tokenizer under another fingerprint.
class OtherTokenizer : public Tokenizer {
 public:
  int32_t vocab_size() const override { return bytes_->vocab_size(); }
  std::unique_ptr<Encoder> encoder() const override { return bytes_->encoder(); }
  std::string_view token_bytes(int32_t id) const override { return bytes_->token_bytes(id); }
  bool is_special(int32_t id) const override { return bytes_->is_special(id); }
  std::optional<int32_t> eos_id() const override { return bytes_->eos_id(); }
  std::optional<int32_t> bos_id() const override { return bytes_->bos_id(); }
  const std::string& fingerprint() const override { return fingerprint_; }
  void save_pretrained(const std::filesystem::path& folder) const override {
    bytes_->save_pretrained(folder);
  }

 private:
  std::unique_ptr<Tokenizer> bytes_ = make_byte_tokenizer();
  std::string fingerprint_ = "other";
};

TEST(DatasetCache, EachTokenizerHasItsOwnEntry) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  const OtherTokenizer other;
  const auto again = make_byte_tokenizer();
  const auto key = [&](const PlainText& records) { return DatasetBuild(source, records, {}).fingerprint(); };
  const std::string plain = key(PlainText(*build.tokenizer));
  EXPECT_NE(key(PlainText(other)), plain);
  EXPECT_EQ(key(PlainText(*again)), plain);
  EXPECT_NE(key(PlainText(*build.tokenizer, {.eos = false})), plain);
}

TEST(DatasetCache, AFailedBuildLeavesNoEntry) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.txt", "caf\xE9")}});
  message_of<FormatError>([&] { build.open(source, folder / "cache"); });
  for (const auto& name : names_in(folder / "cache")) EXPECT_TRUE(name.ends_with(".stepforge-lock")) << name;
}

TEST(DatasetCache, ADamagedEntryIsNamedWithTheRemedy) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  const auto entry = build.open(source, folder / "cache").folder;
  std::filesystem::resize_file(entry / "train.bin", 4);
  const auto message = message_of<Error>([&] { build.open(source, folder / "cache"); });
  EXPECT_CONTAINS(message, "is damaged");
  EXPECT_CONTAINS(message, "delete the folder");
}

TEST(DatasetCache, AChangedBitOfAnyFileIsFoundBeforeUse) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  const TokenizeOptions options = {.split = {.fraction = 0.5}};
  const auto entry = build.open(source, folder / "cache", options).folder;
  const std::vector<std::string> names = names_in(entry);
  EXPECT_EQ(names.size(), 7U) << "two of three files each, and the hashes";
  for (const std::string& name : names) {
    if (name == "hashes.json") continue;
    SCOPED_TRACE(name);
    const std::string whole = read_file(entry / name);
    std::string changed = whole;
    if (changed.empty()) continue;
    changed.back() = static_cast<char>(changed.back() ^ 1);
    std::ofstream(entry / name, std::ios::binary) << changed;
    EXPECT_CONTAINS(message_of<Error>([&] { build.open(source, folder / "cache", options); }), "is damaged",
                    name + ": changed");
    std::ofstream(entry / name, std::ios::binary) << whole;
  }
  std::ofstream(entry / "hashes.json", std::ios::binary) << "[]";
  EXPECT_CONTAINS(message_of<Error>([&] { build.open(source, folder / "cache", options); }), "does not list");
  std::filesystem::remove(entry / "hashes.json");
  EXPECT_CONTAINS(message_of<Error>([&] { build.open(source, folder / "cache", options); }), "hashes.json");
}

TEST(DatasetCache, ForeignContentIsFoundAndOtherFilesAreIgnored) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  const TextSource other({.paths = {folder.write("b.txt", "world")}});
  const auto entry = build.open(source, folder / "cache").folder;
  const auto foreign = build.open(other, folder / "cache").folder;
  std::ofstream(entry / ".nfs0001") << "x";
  EXPECT_NO_THROW(build.open(source, folder / "cache"));
  std::filesystem::copy(foreign / "train.bin", entry, std::filesystem::copy_options::overwrite_existing);
  EXPECT_CONTAINS(message_of<Error>([&] { build.open(source, folder / "cache"); }), "train.bin: changed");
}

TEST(DatasetCache, CheckingAnEntryReportsProgress) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  build.open(source, folder / "cache");
  int reports = 0;
  open_cached_dataset(source, PlainText(*build.tokenizer), {}, folder / "cache",
                      [&](const TokenizeProgress& progress) { reports += progress.verifying ? 1 : 0; });
  EXPECT_EQ(reports, 3) << "one for each small file";
}

TEST(DatasetCache, AnUnusableCacheFolderIsNamed) {
  const TempFolder folder;
  CountedBuild build;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  EXPECT_CONTAINS(message_of<Error>([&] { build.open(source, folder.write("file", "") / "cache"); }),
                  "cannot create the data cache");
}

TEST(DatasetCache, ProcessesThatRaceForAnEntryAllGetIt) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += format("line {}\n", i);
  const auto path = folder.write("a.txt", text);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int code = 1;
      try {
        CountedBuild build;
        const TextSource source({.paths = {path}, .mode = DocumentMode::line});
        if (build.open(source, folder / "cache", {.workers = 1}).train->index().documents() == 20000)
          code = 0;
      } catch (...) {
      }
      _exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(names_in(folder / "cache").size(), 1U);
}

TEST(DatasetCache, ThreadsThatRaceForAnEntryBuildItOnce) {
  const TempFolder folder;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  std::atomic<int> builds = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto tokenizer = make_byte_tokenizer();
      const auto cached =
          open_cached_dataset(source, PlainText(*tokenizer), {.workers = 1}, folder / "cache",
                              [&](const TokenizeProgress& progress) { builds += is_end(progress) ? 1 : 0; });
      EXPECT_EQ(cached.train->index().tokens(), 6);
    });
  }
  threads.clear();
  EXPECT_EQ(builds, 1);
}

TEST(DatasetCache, UsesAnEntryThatAppearsDuringTheBuild) {
  const TempFolder folder;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  CountedBuild build;
  // As if files could not be locked: while this build runs, another one publishes the entry.
  const auto tokenizer = make_byte_tokenizer();
  const auto other = build.open(source, folder / "other");
  const auto entry = folder / "cache" / other.folder.filename().string();
  const auto cached = open_cached_dataset(
      source, PlainText(*tokenizer), {}, folder / "cache", [&](const TokenizeProgress& progress) {
        if (is_end(progress))
          std::filesystem::copy(other.folder, entry, std::filesystem::copy_options::recursive);
      });
  EXPECT_EQ(cached.train->index().tokens(), 6);
  EXPECT_EQ(names_in(folder / "cache").size(), 1U);
}

/// A build that is stopped in the middle, and then continued.
class StoppedBuild : public ::testing::Test {
 protected:
  static TextSource many_lines(const TempFolder& folder) {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += format("line {}\n", i);
    folder.write("in/a.txt", text);
    folder.write("in/b.txt", text);
    return TextSource({.paths = {folder / "in"}, .mode = DocumentMode::line});
  }

  /// Calls `stop` once half of the text is done.
  CachedDataset open(const std::string& cache, const std::function<void()>& stop = {}) {
    first_report_ = -1;
    return open_cached_dataset(source_, PlainText(*tokenizer_), options_, folder_ / cache,
                               [&](const TokenizeProgress& progress) {
                                 if (first_report_ < 0) first_report_ = progress.bytes_done;
                                 if (stop && 2 * progress.bytes_done > progress.bytes_total) stop();
                               });
  }

  void expect_as_built_at_once(const CachedDataset& resumed) {
    const CachedDataset whole = open("other");
    EXPECT_EQ(resumed.train_statistics, whole.train_statistics);
    EXPECT_EQ(resumed.validation_statistics, whole.validation_statistics);
    for (const char* name : {"train.bin", "train.idx", "validation.bin", "validation.idx"}) {
      EXPECT_EQ(read_file(resumed.folder / name), read_file(whole.folder / name)) << name;
    }
    EXPECT_EQ(names_in(resumed.folder).size(), 7U);  // two pairs, their descriptions and the hashes
    EXPECT_EQ(names_in(folder_ / "cache").size(), 1U);
  }

  TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
  TextSource source_ = many_lines(folder_);
  TokenizeOptions options_{
      .workers = 2, .split = {.fraction = 0.2, .seed = 1}, .chunk_bytes = 200, .save_bytes = 4000};
  int64_t first_report_ = -1;
};

TEST_F(StoppedBuild, IsContinuedAfterAnInterrupt) {
  EXPECT_THROW(open("cache", [] { throw Error("interrupted"); }), Error);
  const CachedDataset resumed = open("cache");
  EXPECT_GT(first_report_, source_.total_bytes() / 2 - 6000);
  expect_as_built_at_once(resumed);
}

TEST_F(StoppedBuild, IsContinuedAfterAKill) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    open("cache", [] { kill(getpid(), SIGKILL); });
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const CachedDataset resumed = open("cache");
  EXPECT_GT(first_report_, source_.total_bytes() / 2 - 6000);
  expect_as_built_at_once(resumed);
}

TEST_F(StoppedBuild, StartsAgainIfWhatWasSavedIsDamaged) {
  for (const char* name : {"position.json", "train.bin.part", "train.lengths.part"}) {
    EXPECT_THROW(open("cache", [] { throw Error("interrupted"); }), Error);
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache")) {
      if (entry.is_directory()) std::filesystem::resize_file(entry.path() / name, 7);
    }
    const CachedDataset again = open("cache");
    EXPECT_EQ(first_report_, 0) << name;
    expect_as_built_at_once(again);
    std::filesystem::remove_all(folder_ / "cache");
  }
}

TEST(DatasetCache, EntriesHaveThePermissionsThatTheUmaskLeaves) {
  const TempFolder folder;
  const TextSource source({.paths = {folder.write("a.txt", "hello")}});
  CountedBuild build;
  for (const mode_t mask : {0002, 0077}) {
    const mode_t before = umask(mask);
    const auto entry = build.open(source, folder / std::to_string(mask)).folder;
    umask(before);
    EXPECT_EQ(std::filesystem::status(entry).permissions(), std::filesystem::perms(0777 & ~mask));
    for (const auto& file : std::filesystem::directory_iterator(entry))
      EXPECT_EQ(file.status().permissions(), std::filesystem::perms(0666 & ~mask)) << file.path();
  }
}

}  // namespace
}  // namespace stepforge::testing
