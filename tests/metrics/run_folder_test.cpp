// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/run_folder.h"

#include <regex>

#include <gtest/gtest.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

RunStart start_of(const std::string& version, const std::string& commit, int64_t begin_step,
                  int64_t tokens = 0) {
  RunStart start;
  start.version = version;
  start.commit = commit;
  start.begin_step = begin_step;
  start.tokens = tokens;
  return start;
}

TEST(RunFolder, IsCreatedWithItsParents) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  const RunFolder run(folder / "a/b/run", logger);
  EXPECT_TRUE(fs::is_directory(folder / "a/b/run"));
  EXPECT_EQ(run.metrics_file(), folder / "a/b/run/metrics.jsonl");
  EXPECT_TRUE(run.history().empty());
}

TEST(RunFolder, RefusesAFolderThatCannotBeWrittenNamingIt) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  write_text(folder / "file", "");
  const std::string below = folder / "file/run";
  const std::string message = message_of<UsageError>([&] { RunFolder(below, logger); });
  EXPECT_CONTAINS(message, "cannot create the run folder " + below) << message;
  const std::string file = folder / "file";
  EXPECT_EQ(message_of<UsageError>([&] { RunFolder(file, logger); }),
            "the run folder " + file + " is a file; name another folder");
  // A folder in which even root cannot create files.
  const std::string sealed = message_of<UsageError>([&] { RunFolder("/proc/self", logger); });
  EXPECT_CONTAINS(sealed, "the run folder /proc/self cannot be written") << sealed;
}

TEST(RunFolder, RefusesASecondLiveProcessNamingTheFirst) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  {
    const RunFolder first(folder.path(), logger);
    const std::string message = message_of<UsageError>([&] { RunFolder(folder.path(), logger); });
    EXPECT_CONTAINS(message, format("in use by process {} on ", static_cast<int64_t>(getpid()))) << message;
  }
  const RunFolder next(folder.path(), logger);
}

TEST(RunFolder, DoesNotWriteThroughALockThatIsASymbolicLink) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  write_text(folder / "precious", "data");
  fs::create_directory(folder / "run");
  fs::create_symlink(folder / "precious", folder / "run" / "run.lock");
  const std::string message = message_of<UsageError>([&] { RunFolder(folder / "run", logger); });
  EXPECT_CONTAINS(message, "run.lock is a symbolic link");
  EXPECT_EQ(read_file(folder / "precious"), "data");
}

TEST(RunFolder, WritesThroughNoLink) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  write_text(folder / "precious", "data");
  fs::create_directory(folder / "run");
  for (const char* name : {"run.json.tmp", "config.toml.tmp", "config.toml"})
    fs::create_symlink(folder / "precious", folder / "run" / name);
  {
    RunFolder run(folder / "run", logger);
    run.write_config("[training]\n");
    run.begin(start_of("0.1.0", "abc", 0));
  }
  EXPECT_EQ(read_file(folder / "run/config.toml"), "[training]\n");
  EXPECT_EQ(read_file(folder / "precious"), "data");
}

TEST(RunFolder, ALinkOfTheUserToCheckpointsOnAnotherDiskIsFollowed) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  fs::create_directories(folder / "big disk");
  const RunFolder run(folder / "run", logger);
  EXPECT_EQ(run.checkpoint_link("checkpoint"), "");
  fs::create_directory_symlink(folder / "big disk", folder / "run/checkpoint");
  EXPECT_EQ(run.checkpoint_link("checkpoint"), fs::canonical(folder / "big disk"));
  fs::create_directory(folder / "run/own");
  fs::create_directory_symlink("own", folder / "run/inside");
  EXPECT_EQ(run.checkpoint_link("inside"), fs::canonical(folder / "run/own"));
}

TEST(RunFolder, ALinkToTheCheckpointsOfAnotherRunIsRefused) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  const RunFolder other(folder / "other", logger);
  fs::create_directory(folder / "other/checkpoint");
  const RunFolder run(folder / "run", logger);
  fs::create_directory_symlink(folder / "other/checkpoint", folder / "run/checkpoint");
  fs::create_directory_symlink(folder / "nowhere", folder / "run/dangling");
  EXPECT_CONTAINS(message_of<UsageError>([&] { run.checkpoint_link("checkpoint"); }), "into another run",
                  "put a folder in its place");
  EXPECT_CONTAINS(message_of<UsageError>([&] { run.checkpoint_link("dangling"); }), "to nowhere");
}

TEST(RunFolder, KeepsTheHistoryOfItsStarts) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  {
    RunFolder run(folder.path(), logger);
    run.begin(start_of("0.1.0", "abc123", 0));
    run.progress(40, 4000, 40, 10.5);
    run.finish("interrupted");
  }
  {
    RunFolder run(folder.path(), logger);
    run.begin(start_of("0.1.0", "abc124", 30));
    run.progress(35, 3500, 35, 1.5);
    run.progress(50, 5000, 50, 4);
    run.finish("completed");
  }
  const std::vector<RunStart> starts = read_run_history(folder.path());
  ASSERT_EQ(starts.size(), 2U);
  EXPECT_EQ(starts[0].exit_reason, "interrupted");
  EXPECT_EQ(starts[0].commit, "abc123");
  EXPECT_EQ(starts[0].end_step, 40);
  EXPECT_EQ(starts[1].begin_step, 30);
  EXPECT_EQ(starts[1].end_step, 50);
  EXPECT_EQ(starts[1].tokens, 5000);
  EXPECT_EQ(starts[1].labels, 50);
  EXPECT_EQ(starts[1].seconds, 14.5);
  EXPECT_EQ(starts[1].exit_reason, "completed");
  EXPECT_EQ(starts[1].pid, getpid());
  EXPECT_FALSE(starts[1].host.empty());
  EXPECT_TRUE(std::regex_match(starts[1].time, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")))
      << starts[1].time;
}

TEST(RunFolder, MarksAnEarlierStartThatIsStillRunningAsDied) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  {
    RunFolder run(folder.path(), logger);
    run.begin(start_of("0.1.0", "abc", 0));
    run.progress(7, 700, 7, 1);
    EXPECT_EQ(read_run_history(folder.path())[0].exit_reason, "running");
  }
  RunFolder run(folder.path(), logger);
  run.begin(start_of("0.1.0", "abc", 5, 500));
  const std::vector<RunStart> starts = read_run_history(folder.path());
  EXPECT_EQ(starts[0].exit_reason, "died");
  EXPECT_EQ(starts[0].end_step, 7);
  EXPECT_EQ(starts[1].exit_reason, "running");
  EXPECT_EQ(starts[1].end_step, 5);
  EXPECT_EQ(starts[1].tokens, 500);
}

TEST(RunFolder, RenamesADamagedHistoryWithAWarningAndBeginsANewOne) {
  for (const auto& [text, fault] : {std::pair("{", "run.json: byte 1: expected '\"', but the text ends"),
                                    std::pair(R"({"format_version": 1, "starts": [{"host": 5}]})",
                                              "\"starts[0].host\" is 5, not a string"),
                                    std::pair(R"({"format_version": 1})", "\"starts\" is missing")}) {
    const TempFolder folder;
    const std::string file = folder / "run.json";
    write_text(file, text);
    EXPECT_CONTAINS(message_of<FormatError>([&] { read_run_history(folder.path()); }), fault);
    ::testing::internal::CaptureStderr();
    Logger logger(LogLevel::warning);
    RunFolder run(folder.path(), logger);
    EXPECT_TRUE(run.history().empty());
    run.begin(start_of("0.1.0", "abc", 0));
    const std::string warning = ::testing::internal::GetCapturedStderr();
    EXPECT_CONTAINS(warning, file + " is damaged and was renamed to " + file + ".damaged");
    EXPECT_CONTAINS(warning, fault);
    EXPECT_EQ(read_file(file + ".damaged"), text);
    EXPECT_EQ(read_run_history(folder.path()).size(), 1U);
  }
}

TEST(RunFolder, KeepsEveryDamagedHistory) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  for (const char* text : {"{", "["}) {
    write_text(folder / "run.json", text);
    RunFolder(folder.path(), logger);
  }
  EXPECT_EQ(read_file(folder / "run.json.damaged"), "{");
  EXPECT_EQ(read_file(folder / "run.json.damaged-2"), "[");
}

TEST(RunFolder, ReadsAHistoryOfVersionsWithFewerFields) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  {
    RunFolder run(folder.path(), logger);
    run.begin(start_of("0.1.0", "abc", 0));
    run.progress(7, 700, 7, 1);
  }
  Json json = read_json_file(folder / "run.json");
  for (const char* key : {"saved_step", "launch_id", "labels", "data"})
    EXPECT_EQ(json["starts"][0].erase(key), 1U);
  write_text(folder / "run.json", json.dump());
  const std::vector<RunStart> starts = read_run_history(folder.path());
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_EQ(starts[0].saved_step, 7) << "what was finished may have been saved";
  EXPECT_EQ(starts[0].launch_id, "");
}

TEST(RunFolder, RemembersTheLastSavedStepAndTheLaunch) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  {
    RunFolder run(folder.path(), logger);
    run.saved(10);  // of no start yet
    RunStart start = start_of("0.1.0", "abc", 0);
    start.launch_id = "job 7";
    run.begin(start);
    EXPECT_EQ(read_run_history(folder.path())[0].saved_step, 0);
    run.saved(20);
  }
  const std::vector<RunStart> starts = read_run_history(folder.path());
  EXPECT_EQ(starts[0].saved_step, 20);
  EXPECT_EQ(starts[0].launch_id, "job 7");
}

TEST(RunFolder, RefusesAHistoryOfAnotherVersionAndKeepsIt) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  const std::string later = R"({"format_version": 9, "starts": []})";
  write_text(folder / "run.json", later);
  EXPECT_CONTAINS(message_of<Error>([&] { RunFolder(folder.path(), logger); }),
                  "format_version 9, this program reads 1");
  EXPECT_EQ(read_file(folder / "run.json"), later);
  // The lock of the refused attempt is gone.
  write_text(folder / "run.json", R"({"format_version": 1, "starts": []})");
  const RunFolder run(folder.path(), logger);
}

TEST(RunFolder, ProgressSurvivesAHistoryThatCannotBeWritten) {
  const TempFolder folder;
  ::testing::internal::CaptureStderr();
  Logger logger(LogLevel::warning);
  RunFolder run(folder / "run", logger);
  run.begin(start_of("0.1.0", "abc", 0));
  fs::remove(folder / "run/run.json");
  fs::create_directory(folder / "run/run.json");
  write_text(folder / "run/run.json/in-the-way", "");
  run.progress(3, 300, 3, 1);
  EXPECT_CONTAINS(::testing::internal::GetCapturedStderr(), "run.json");
  EXPECT_EQ(run.history()[0].end_step, 3);
}

TEST(RunFolder, WritesTheResolvedConfig) {
  const TempFolder folder;
  Logger logger(LogLevel::error);
  const RunFolder run(folder.path(), logger);
  run.write_config("[training]\nsteps = 10\n");
  EXPECT_EQ(read_file(folder / "config.toml"), "[training]\nsteps = 10\n");
}

}  // namespace
}  // namespace stepforge::testing
