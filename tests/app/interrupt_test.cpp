// SPDX-License-Identifier: Apache-2.0
// The first signal that announces an end finishes the step and saves; a second Ctrl-C or SIGTERM ends at once.
#include <algorithm>
#include <array>
#include <cstring>

#include <poll.h>

#include "stepforge/base/staged.h"
#include "stepforge/metrics/run_folder.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

/// More steps than any test waits for.
Strings long_run(const fs::path& run) {
  return Strings{"train"} + small_run(run) + Strings{"training.steps=100000", "checkpoint.interval=100000"};
}

std::vector<fs::path> step_folders(const fs::path& run) {
  std::vector<fs::path> folders;
  if (!fs::exists(run / "checkpoint")) return folders;
  for (const auto& entry : fs::directory_iterator(run / "checkpoint")) folders.push_back(entry.path());
  return folders;
}

/// Whether the metrics have at least this many steps.
bool has_steps(const fs::path& run, int64_t steps) {
  if (!fs::exists(run / "metrics.jsonl")) return false;
  const std::string lines = read_file(run / "metrics.jsonl");
  return std::count(lines.begin(), lines.end(), '\n') >= steps;
}

class InterruptedBy : public ::testing::TestWithParam<int> {};

TEST_P(InterruptedBy, OneSignalFinishesTheStepSavesItAndExits130) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  Child child(long_run(run));
  ASSERT_TRUE(child.wait_until([&] { return has_steps(run, 3); })) << child.err();
  child.signal(GetParam());
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_CONTAINS(result.err, "finishing this step and saving");

  const auto history = read_run_history(run);
  ASSERT_EQ(history.size(), 1U);
  EXPECT_EQ(history[0].exit_reason, "interrupted");
  const auto folders = step_folders(run);
  ASSERT_EQ(folders.size(), 1U);
  EXPECT_EQ(folders[0].filename().string(), format("step-{}", history[0].end_step));
  EXPECT_TRUE(fs::exists(folders[0] / "manifest.json"));

  // The next start resumes from there.
  const int64_t done = history[0].end_step;
  const ProgramResult resumed = run_program(long_run(run) + Strings{format("training.steps={}", done + 2)});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_CONTAINS(resumed.err, format("at step {}", done));
  EXPECT_EQ(read_run_history(run).back().begin_step, done);
  EXPECT_EQ(read_run_history(run).back().exit_reason, "completed");
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptedBy,
                         ::testing::Values(SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT, SIGXCPU,
                                           SIGPWR),
                         [](const auto& number) { return std::string(sigabbrev_np(number.param)); });

TEST(Interrupt, NoticesThatRepeatAndASigtermAfterThemStillSave) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  // Steps long enough, so that all signals come before the step's end.
  Child child(long_run(run) + Strings{"training.global_batch_size=800"});
  ASSERT_TRUE(child.wait_until([&] { return has_steps(run, 1); })) << child.err();
  child.signal(SIGUSR1);
  ASSERT_TRUE(child.wait_until([&] { return contains(child.err(), "SIGUSR1 announces the end"); }));
  for (const int number : {SIGUSR1, SIGXCPU, SIGXCPU, SIGTERM}) child.signal(number);
  EXPECT_EQ(child.wait().exit_code, 130);
  EXPECT_EQ(read_run_history(run).back().exit_reason, "interrupted");
  EXPECT_EQ(step_folders(run).size(), 1U);
}

TEST(Interrupt, ASignalThatIsIgnoredAtTheStartStaysIgnored) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  const std::string train = shell_command(long_run(run));
  Child child({"-c", "trap '' HUP USR1; exec " + train}, "", {}, "/bin/sh");
  ASSERT_TRUE(child.wait_until([&] { return has_steps(run, 1); })) << child.err();
  child.signal(SIGHUP);
  child.signal(SIGUSR1);
  const auto steps = [&] {
    const std::string lines = read_file(run / "metrics.jsonl");
    return std::count(lines.begin(), lines.end(), '\n');
  };
  const int64_t before = steps();
  ASSERT_TRUE(child.wait_until([&] { return steps() > before + 3; })) << child.err();
  child.signal(SIGTERM);
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_FALSE(contains(result.err, "announces")) << result.err;
}

TEST(Interrupt, ANoticeDuringSetUpTrainsNothingAndExits130) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(200000));
  Child child(long_run(folder / "run") +
              Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string())});
  ASSERT_TRUE(child.wait_until([&] { return fs::exists(folder / "run" / "run.lock"); }));
  child.signal(SIGUSR2);
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_TRUE(step_folders(folder / "run").empty());
}

TEST(Interrupt, TwoSignalsEndAtOnceWithoutAPartialCheckpoint) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  // Steps long enough, so that the second signal comes before the step's end.
  Child child(long_run(run) + Strings{"training.global_batch_size=800", "checkpoint.interval=1"});
  ASSERT_TRUE(child.wait_until([&] { return has_steps(run, 1); })) << child.err();
  child.signal(SIGINT);
  ASSERT_TRUE(child.wait_until([&] { return contains(child.err(), "press Ctrl-C again to quit now"); }));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait().exit_code, 130);
  EXPECT_EQ(read_run_history(run).back().exit_reason, "running")
      << "it finished the step instead of ending at once";
  for (const auto& path : step_folders(run)) {
    EXPECT_TRUE(staged_target(path) || fs::exists(path / "manifest.json")) << path;
  }
  const ProgramResult resumed =
      run_program(long_run(run) + Strings{"training.global_batch_size=800", "training.steps=2"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  for (const auto& path : step_folders(run)) EXPECT_TRUE(fs::exists(path / "manifest.json")) << path;
}

TEST(Interrupt, TwiceOnATerminalLeavesACleanLine) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  const int screen = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_TRUE(screen >= 0 && grantpt(screen) == 0 && unlockpt(screen) == 0);
  std::array<char, 128> name{};
  ASSERT_EQ(ptsname_r(screen, name.data(), name.size()), 0);
  Child child(long_run(run) + Strings{"training.global_batch_size=800", "metrics.status_line=on"}, "", {},
              program_path(), name.data());
  std::string text;
  // The terminal has a small buffer, so its output is read while waiting.
  const auto read_screen = [&] {
    pollfd ready{screen, POLLIN, 0};
    while (poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0) {
      std::array<char, 4096> buffer{};
      const ssize_t got = read(screen, buffer.data(), buffer.size());
      if (got <= 0) return;
      text.append(buffer.data(), static_cast<size_t>(got));
    }
  };
  const auto shows = [&](const std::string& part) {
    return [&, part] {
      read_screen();
      return contains(text, part);
    };
  };
  ASSERT_TRUE(child.wait_until(shows("1/100,000"))) << text;
  child.signal(SIGINT);
  ASSERT_TRUE(child.wait_until(shows("press Ctrl-C again to quit now"))) << text;
  child.signal(SIGINT);
  EXPECT_EQ(child.wait().exit_code, 130);
  read_screen();
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << text;
  close(screen);
}

TEST(Interrupt, WhileSavingLeavesOnlyCompleteCheckpoints) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  const Strings args = long_run(run) + Strings{"checkpoint.interval=1", "checkpoint.keep_latest_k=2"};
  Child child(args);
  ASSERT_TRUE(child.wait_until([&] { return has_steps(run, 4); })) << child.err();
  child.signal(SIGINT);
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait().exit_code, 130);
  const ProgramResult resumed = run_program(args + Strings{"training.steps=1"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_FALSE(contains(resumed.err, "damaged"));
  for (const auto& path : step_folders(run)) EXPECT_TRUE(fs::exists(path / "manifest.json")) << path;
}

TEST(Interrupt, DuringSetUpTrainsNothingAndExits130) {
  const TempFolder folder;
  write_text(folder / "tale.txt", some_text(200000));
  Child child(long_run(folder / "run") +
              Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string())});
  ASSERT_TRUE(child.wait_until([&] { return fs::exists(folder / "run" / "run.lock"); }));
  child.signal(SIGINT);
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_TRUE(step_folders(folder / "run").empty());
}

}  // namespace
}  // namespace stepforge::testing
