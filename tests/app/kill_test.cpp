// SPDX-License-Identifier: Apache-2.0
// kill -9 at any moment: the run resumes to the same bits.
#include <algorithm>
#include <chrono>
#include <random>
#include <sstream>
#include <vector>

#include <sys/prctl.h>

#include "stepforge/metrics/run_folder.h"
#include "tests/app/program.h"
#include "tests/app/run_state.h"

namespace stepforge::testing {
namespace {

Strings saving_every_step(const TempFolder& folder, const std::string& run, int64_t steps) {
  return Strings{"train"} + small_run(folder / run) +
         Strings{format("training.steps={}", steps),
                 "checkpoint.interval=1",
                 "checkpoint.keep_latest_k=3",
                 "model.dropout=0.1",
                 "data.validation_fraction=0.1",
                 "validation.freq=5",
                 "validation.steps=1"};
}

void expect_same_file(const fs::path& left, const fs::path& right) {
  EXPECT_TRUE(read_file(left) == read_file(right)) << left << " differs from " << right;
}

/// Starts the run and kills it `kills` times: usually shortly after one to four more steps, every third time
/// at a random moment, possibly during set-up.
void kill_repeatedly(const Strings& args, const fs::path& run, int kills) {
  using Clock = std::chrono::steady_clock;
  std::mt19937 random(20240517);
  for (int killed = 0; killed < kills; ++killed) {
    const int64_t goal = newest_step(run) + 1 + static_cast<int64_t>(random() % 4);
    const auto moment = Clock::now() + std::chrono::milliseconds(killed % 3 == 2 ? random() % 600 : 100'000);
    Child child(args);
    ASSERT_TRUE(child.wait_until([&] { return newest_step(run) >= goal || Clock::now() >= moment; }))
        << child.err();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
    child.signal(SIGKILL);
    ASSERT_EQ(child.wait().exit_code, 128 + SIGKILL);
  }
}

TEST(Kill, AtRandomMomentsLeavesTheFinalCheckpointBitEqual) {
  const int kills = long_tests() ? 100 : 10;
  const int64_t steps = 10 * kills;
  const TempFolder folder;
  ASSERT_EQ(run_program(saving_every_step(folder, "whole", steps)).exit_code, 0);
  kill_repeatedly(saving_every_step(folder, "killed", steps), folder / "killed", kills);
  if (HasFatalFailure()) return;
  const ProgramResult last = run_program(saving_every_step(folder, "killed", steps));
  ASSERT_EQ(last.exit_code, 0) << last.err;

  const fs::path step = fs::path("checkpoint") / format("step-{}", steps);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    expect_same_file(folder / "whole" / step / file, folder / "killed" / step / file);
  }
  const auto history = read_run_history(folder / "killed");
  EXPECT_GE(std::ssize(history), 2);
  EXPECT_EQ(history.back().exit_reason, "completed");
  EXPECT_EQ(history.back().tokens, read_run_history(folder / "whole").back().tokens);
  for (const auto& entry : fs::directory_iterator(folder / "killed" / "checkpoint")) {
    EXPECT_TRUE(fs::exists(entry.path() / "manifest.json")) << entry.path() << " is incomplete";
  }
}

TEST(Kill, LeavesEveryPrintedLineInTheLogFile) {
  const TempFolder folder;
  const fs::path run = folder / "run";
  Child child(saving_every_step(folder, "run", 100'000) + Strings{"checkpoint.interval=100000"});
  ASSERT_TRUE(child.wait_until([&] { return contains(child.err(), "step: 5  "); })) << child.err();
  child.signal(SIGKILL);
  const std::string printed = child.wait().err;
  const std::string log = read_file(run / "log.txt");
  std::istringstream lines(printed);
  int64_t checked = 0;
  for (std::string line; std::getline(lines, line); ++checked) {
    const std::string text = line.substr(std::string("12:00:01 INFO    ").size());
    EXPECT_CONTAINS(log, text) << line;
  }
  EXPECT_GE(checked, 8);
}

TEST(LogReader, MayGoAwayWithoutEndingTheRun) {
  const TempFolder folder;
  const std::string command = shell_command(saving_every_step(folder, "run", 20));
  const ProgramResult result = Child({"-c", command + " 2>&1 | head -n 1"}, "", {}, "/bin/sh").wait();
  EXPECT_EQ(result.exit_code, 0);
  const auto history = read_run_history(folder / "run");
  ASSERT_EQ(history.size(), 1U);
  EXPECT_EQ(history[0].exit_reason, "completed");
}

TEST(LogReader, MayGoAwayWithoutEndingALaunchedRun) {
  const TempFolder folder;
  const std::string command =
      shell_command(Strings{"launch", "--nproc", "2"} + saving_every_step(folder, "run", 20));
  const std::string script =
      format("({} 2>&1; echo $? >{}) | head -n 1", command, (folder / "code").string());
  EXPECT_EQ(Child({"-c", script}, "", {}, "/bin/sh").wait().exit_code, 0);
  EXPECT_EQ(read_file(folder / "code"), "0\n");
  const auto history = read_run_history(folder / "run");
  ASSERT_EQ(history.size(), 1U);
  EXPECT_EQ(history[0].exit_reason, "completed");
}

/// One rank dies with the launcher before it can watch for signals; the other waits for it to join.
TEST(Kill, OfTheLauncherEndsRanksThatWaitForOthersToJoin) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // ranks become children of this process
  const TempFolder folder;
  const std::string rank =
      "if [ $RANK = 1 ]; then exec sleep 1000; fi; exec " +
      shell_command(saving_every_step(folder, "run", 20) + Strings{"comm.init_timeout=1000"});
  Child launcher({"launch", "--nproc", "2", "--log-dir", (folder / "logs").string(), "/bin/sh", "-c", rank});
  const auto waits = [](pid_t process) {
    std::ifstream maps(format("/proc/{}/maps", process));
    std::ostringstream text;
    text << maps.rdbuf();
    return contains(text.str(), "libstepforge_torch");
  };
  std::vector<pid_t> ranks;
  ASSERT_TRUE(launcher.wait_until([&] {
    ranks = children_of(launcher.pid());
    return std::ranges::any_of(ranks, waits);
  }));
  launcher.signal(SIGKILL);
  launcher.wait();
  for (const pid_t process : ranks) {
    pid_t ended = 0;
    for (int i = 0; i < 30000 && ended == 0; ++i) {
      ended = waitpid(process, nullptr, WNOHANG);
      usleep(1000);
    }
    EXPECT_EQ(ended, process);
    if (ended == 0) kill(process, SIGKILL);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Kill, LeavesEachStepOnceInTheMetrics) {
  constexpr int64_t steps = 30;
  const TempFolder folder;
  ASSERT_EQ(run_program(saving_every_step(folder, "whole", steps)).exit_code, 0);
  kill_repeatedly(saving_every_step(folder, "killed", steps), folder / "killed", 3);
  if (HasFatalFailure()) return;
  ASSERT_EQ(run_program(saving_every_step(folder, "killed", steps)).exit_code, 0);
  const Strings expected = losses(folder / "whole");
  EXPECT_EQ(std::ssize(expected), steps + steps / 5);
  EXPECT_EQ(losses(folder / "killed"), expected);
}

}  // namespace
}  // namespace stepforge::testing
