// SPDX-License-Identifier: Apache-2.0
// The launcher with small shell programs as ranks.
#include "stepforge/launch/launcher.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/threads.h"
#include "stepforge/launch/child_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

class Launcher : public ::testing::Test {
 protected:
  /// Runs `script` in a shell as every rank.
  int run(const std::string& script, int processes, LaunchOptions options = {}) {
    options.processes = processes;
    if (options.notice_seconds == LaunchOptions().notice_seconds) options.notice_seconds = 0.1;
    options.log_folder = folder_ / "logs";
    options.command = {"/bin/sh", "-c", script, "rank", folder_.path().string()};
    report_.str("");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = launch(options, report_);
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return code;
  }
  std::string report() const { return report_.str(); }
  std::string log(const std::string& name) const { return read_file(folder_ / "logs" / name); }

  TempFolder folder_;  ///< $1 of the scripts
  std::ostringstream report_;
  std::string out_;
  std::string err_;
};

TEST_F(Launcher, GivesEachRankItsVariables) {
  EXPECT_EQ(
      run("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $TORCHELASTIC_RESTART_COUNT "
          "$TORCHELASTIC_MAX_RESTARTS; test -n \"$STEPFORGE_LAUNCH_ID\" && test -n \"$TORCHELASTIC_RUN_ID\"",
          3),
      0);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(log(format("rank-{}.log", rank)), format("{} {} 3 3 0 0 0\n", rank, rank));
  }
  EXPECT_EQ(report(), "");
}

TEST_F(Launcher, ReplacesVariablesOfAnOuterLauncher) {
  LaunchOptions options;
  options.log_folder = folder_ / "logs";
  options.command = {"/usr/bin/env"};  // a shell would show each variable once
  options.shown = "";
  setenv("RANK", "7", 1);
  EXPECT_EQ(launch(options, report_), 0);
  unsetenv("RANK");
  EXPECT_CONTAINS(log("rank-0.log"), "\nRANK=0\n");
  EXPECT_FALSE(contains(log("rank-0.log"), "\nRANK=7\n"));
}

TEST_F(Launcher, ShowsRankZeroUnchangedAndLogsAllRanks) {
  EXPECT_EQ(run("printf \"out $RANK\"; printf \"err $RANK\" >&2", 2), 0);
  EXPECT_EQ(out_, "out 0");
  EXPECT_EQ(err_, "err 0");
  for (int rank = 0; rank < 2; ++rank) {
    const std::string text = log(format("rank-{}.log", rank));
    EXPECT_CONTAINS(text, format("out {}", rank));
    EXPECT_CONTAINS(text, format("err {}", rank));
  }
}

TEST_F(Launcher, PrefixesWholeLinesOfSeveralShownRanks) {
  LaunchOptions options;
  options.shown = "1,2";
  EXPECT_EQ(run("printf \"a\"; sleep 0.0$RANK; printf \"b\\nc\"", 3, options), 0);
  for (const char* line : {"[rank 1] ab\n", "[rank 1] c\n", "[rank 2] ab\n", "[rank 2] c\n"}) {
    EXPECT_CONTAINS(out_, line);
  }
  EXPECT_FALSE(contains(out_, "[rank 0]"));
}

TEST_F(Launcher, LosesNoOutput) {
  EXPECT_EQ(run("i=0; while [ $i -lt 20000 ]; do echo \"line $i of a long output\"; i=$((i+1)); done", 1), 0);
  EXPECT_EQ(out_, log("rank-0.log"));
  EXPECT_TRUE(out_.ends_with("line 19999 of a long output\n"));
}

TEST_F(Launcher, TheFirstFailureEndsTheOtherRanksAndSetsTheExitCode) {
  EXPECT_EQ(run("if [ $RANK = 1 ]; then echo the disk is full >&2; exit 7; fi; exec sleep 1000", 3), 7);
  EXPECT_CONTAINS(report(), "rank 1 of 3 failed with exit code 7");
  EXPECT_CONTAINS(report(), "rank-1.log");
  EXPECT_CONTAINS(report(), "the disk is full");
}

TEST_F(Launcher, LetsRanksThatNoticeAFailureEndByThemselves) {
  LaunchOptions options;
  options.notice_seconds = 60;  // no signal comes before, however busy the machine is
  // Rank 1 continues until the launcher has seen the end of rank 0.
  EXPECT_EQ(run(R"(
    trap 'echo got a signal; exit 1' TERM
    if [ $RANK = 0 ]; then echo $$ >$1/new; mv $1/new $1/failed; exit 6; fi
    while [ ! -e $1/failed ]; do sleep 0.01; done
    while kill -0 $(cat $1/failed) 2>/dev/null; do sleep 0.01; done
    echo rank 0 has failed
    exit 1)",
                2, options),
            6);
  EXPECT_EQ(log("rank-1.log"), "rank 0 has failed\n");
}

TEST_F(Launcher, KillsRanksThatDoNotEndInTime) {
  LaunchOptions options;
  options.grace_seconds = 0.2;
  EXPECT_EQ(
      run("if [ $RANK = 0 ]; then while [ ! -e $1/deaf ]; do sleep 0.01; done; exit 3; fi; trap '' TERM; "
          "touch $1/deaf; while true; do sleep 0.05; echo alive; done",
          2, options),
      3);
  EXPECT_CONTAINS(report(), "rank 0 of 2 failed with exit code 3");
}

TEST_F(Launcher, ReportsARankKilledByASignal) {
  EXPECT_EQ(run("if [ $RANK = 1 ]; then kill -KILL $$; fi; exec sleep 1000", 2), 128 + SIGKILL);
  EXPECT_CONTAINS(report(), "rank 1 of 2 was killed by signal 9 (Killed)");
}

TEST_F(Launcher, ReportsOnlyTheLastLines) {
  LaunchOptions options;
  options.shown = "";
  EXPECT_EQ(run("i=0; while [ $i -lt 5000 ]; do echo \"line $i.\"; i=$((i+1)); done; exit 1", 1, options), 1);
  EXPECT_CONTAINS(report(), "line 4988.\n");
  EXPECT_CONTAINS(report(), "line 4999.\n");
  EXPECT_FALSE(contains(report(), "line 4987.\n"));
}

TEST_F(Launcher, RestartsAllRanksAfterAFailure) {
  LaunchOptions options;
  options.max_restarts = 2;
  const std::string script =
      "echo attempt $TORCHELASTIC_RESTART_COUNT; if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; "
      "then exit 5; fi; if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then exec sleep 1000; fi";
  EXPECT_EQ(run(script, 2, options), 0);
  EXPECT_CONTAINS(report(), "restart 2 of 2");
  EXPECT_EQ(log("rank-1.log"), "attempt 0\n");
  EXPECT_EQ(log("rank-0.restart-2.log"), "attempt 2\n");
}

TEST_F(Launcher, GivesUpAfterTheLastRestart) {
  LaunchOptions options;
  options.max_restarts = 1;
  EXPECT_EQ(run("exit 9", 2, options), 9);
  EXPECT_CONTAINS(report(), "restart 1 of 1");
}

TEST_F(Launcher, DoesNotRestartAfterAUsageError) {
  LaunchOptions options;
  options.max_restarts = 5;
  EXPECT_EQ(run("exit 2", 1, options), 2);
  EXPECT_FALSE(contains(report(), "restart"));
}

TEST_F(Launcher, ForwardsSignalsAndDoesNotRestartAfterThem) {
  LaunchOptions options;
  options.max_restarts = 5;
  // Rank 0 signals the launcher once both ranks are ready; each rank ends in its handler.
  const std::string script =
      "trap 'echo got it; exit 130' TERM; touch $1/ready-$RANK; "
      "while [ ! -e $1/ready-0 ] || [ ! -e $1/ready-1 ]; do sleep 0.01; done; "
      "if [ $RANK = 0 ]; then kill -TERM $PPID; fi; while true; do sleep 0.02; done";
  EXPECT_EQ(run(script, 2, options), 130);
  EXPECT_EQ(log("rank-0.log"), "got it\n");
  EXPECT_EQ(log("rank-1.log"), "got it\n");
  EXPECT_FALSE(contains(report(), "restart"));
}

TEST_F(Launcher, RunsEachRankInItsOwnProcessGroup) {
  EXPECT_EQ(run("ps -o pgid= -p $$ | tr -d ' '; echo $$", 1), 0);
  const std::string group = out_.substr(0, out_.find('\n'));
  EXPECT_EQ(out_, group + "\n" + group + "\n");
}

TEST_F(Launcher, NamesAProgramThatCannotBeRunAndStartsNoRank) {
  LaunchOptions options;
  options.log_folder = folder_ / "logs";
  options.command = {(folder_ / "nothing").string()};
  const std::string message = message_of<UsageError>([&] { launch(options, report_); });
  EXPECT_EQ(message, format("{} cannot be run: No such file or directory", options.command[0]));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "logs"));
}

TEST_F(Launcher, ReportsTheCauseInsteadOfACallStack) {
  LaunchOptions options;
  options.shown = "";
  run("echo 'what():  mat1 and mat2 must have the same dtype'; echo 'Exception raised from f at a.cpp:1'; "
      "i=0; while [ $i -lt 40 ]; do echo \"frame #$i: main + 0x1\"; i=$((i+1)); done; exit 1",
      1, options);
  EXPECT_TRUE(report().ends_with("its last lines:\nwhat():  mat1 and mat2 must have the same dtype\n"))
      << report();
}

TEST_F(Launcher, AnErrorOfAShownRankIsPrintedOnce) {
  EXPECT_EQ(run("echo 'error: no such file' >&2; exit 1", 1), 1);
  EXPECT_EQ(err_, "error: no such file\n");
  EXPECT_EQ(report(), format("rank 0 of 1 failed with exit code 1; its log is {}\n",
                             (folder_ / "logs" / "rank-0.log").string()));
}

TEST_F(Launcher, AnErrorThatAllRanksShareIsPrintedOnce) {
  // Rank 1 fails first, and rank 0 shows the same error.
  EXPECT_EQ(run("if [ $RANK = 0 ]; then while [ ! -e $1/failed ]; do sleep 0.01; done; fi; "
                "echo 'error: no such file' >&2; touch $1/failed; exit 1",
                2),
            1);
  EXPECT_EQ(err_, "error: no such file\n");
  EXPECT_FALSE(contains(report(), "no such file"));
}

TEST_F(Launcher, DividesTheCoresAmongRanksUnlessOmpNumThreadsIsSet) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before == nullptr ? "" : before;
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(run("echo $OMP_NUM_THREADS", 2), 0);
  EXPECT_EQ(out_, format("{}\n", std::max(1, hardware_threads() / 2)));
  setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_EQ(run("echo $OMP_NUM_THREADS", 2), 0);
  EXPECT_EQ(out_, "7\n");
  unsetenv("OMP_NUM_THREADS");
  if (before != nullptr) setenv("OMP_NUM_THREADS", kept.c_str(), 1);
}

TEST_F(Launcher, OnlyTheShownRankGetsTheWidthOfTheTerminal) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const winsize size{40, 123, 0, 0};
  ioctl(terminal, TIOCSWINSZ, &size);
  const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  const int kept = dup(STDERR_FILENO);
  LaunchOptions options;
  options.processes = 2;
  options.log_folder = folder_ / "logs";
  options.command = {"/bin/sh", "-c", "echo columns $STEPFORGE_STDERR_COLUMNS"};
  ::testing::internal::CaptureStdout();
  dup2(end, STDERR_FILENO);
  const int code = launch(options, report_);
  dup2(kept, STDERR_FILENO);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "columns 123\n");
  for (const int descriptor : {terminal, end, kept}) close(descriptor);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(log("rank-0.log"), "columns 123\n");
  EXPECT_EQ(log("rank-1.log"), "columns\n");
}

TEST_F(Launcher, AUsageErrorIsNeverRestartedWhicheverRankEndsFirst) {
  LaunchOptions options;
  options.max_restarts = 5;
  options.notice_seconds = 60;
  for (const int usage : {0, 1}) {
    const std::string script = format(
        "if [ $RANK = {0} ]; then while [ ! -e $1/failed-{0} ]; do sleep 0.01; done; sleep 0.1; exit 2; fi; "
        "touch $1/failed-{0}; exit 1",
        usage);
    EXPECT_EQ(run(script, 2, options), 2);
    EXPECT_CONTAINS(report(), format("rank {} of 2 failed with exit code 2", usage));
    EXPECT_FALSE(contains(report(), "restart"));
  }
}

TEST_F(Launcher, ARankKilledByAnInterruptDoesNotLeaveTheOthersWaiting) {
  LaunchOptions options;
  options.grace_seconds = 0.2;
  // Rank 1 has no handler yet; rank 0 ignores signals.
  const std::string script =
      "if [ $RANK = 0 ]; then trap '' INT TERM; fi; touch $1/ready-$RANK; "
      "while [ ! -e $1/ready-0 ] || [ ! -e $1/ready-1 ]; do sleep 0.01; done; "
      "if [ $RANK = 0 ]; then kill -INT $PPID; fi; while true; do sleep 0.02; done";
  EXPECT_EQ(run(script, 2, options), 128 + SIGINT);
}

TEST_F(Launcher, RanksThatIgnoreAnInterruptAreKilledAtTheDeadline) {
  LaunchOptions options;
  options.interrupt_seconds = 0.2;
  options.grace_seconds = 0.2;
  const std::string script =
      "trap '' INT TERM; touch $1/ready-$RANK; "
      "while [ ! -e $1/ready-0 ] || [ ! -e $1/ready-1 ]; do sleep 0.01; done; "
      "if [ $RANK = 0 ]; then kill -INT $PPID; fi; while true; do sleep 0.02; done";
  EXPECT_EQ(run(script, 2, options), 128 + SIGKILL);
}

TEST_F(Launcher, StragglersAfterAnInterruptAreKilled) {
  LaunchOptions options;
  options.straggler_seconds = 0.2;
  options.grace_seconds = 0.2;
  const std::string script =
      "trap 'if [ $RANK = 1 ]; then exit 130; fi' INT; if [ $RANK = 0 ]; then trap '' TERM; fi; "
      "touch $1/ready-$RANK; while [ ! -e $1/ready-0 ] || [ ! -e $1/ready-1 ]; do sleep 0.01; done; "
      "if [ $RANK = 0 ]; then kill -INT $PPID; fi; while true; do sleep 0.02; done";
  EXPECT_EQ(run(script, 2, options), 130);
}

TEST_F(Launcher, RefusesInvalidOptions) {
  LaunchOptions options;
  options.log_folder = folder_ / "logs";
  EXPECT_THROW(launch(options, report_), UsageError);
  options.command = {"/bin/true"};
  options.processes = 0;
  EXPECT_THROW(launch(options, report_), UsageError);
  options.processes = 100000;
  EXPECT_CONTAINS(message_of<UsageError>([&] { launch(options, report_); }), "this host can run at most ");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "logs"));
  options.processes = 1;
  options.max_restarts = -1;
  EXPECT_THROW(launch(options, report_), UsageError);
  options.max_restarts = 0;
  std::ofstream(folder_ / "file") << "x";
  options.log_folder = folder_ / "file" / "logs";
  EXPECT_THROW(launch(options, report_), Error);
}

TEST_F(Launcher, WritesNoLogThroughALink) {
  std::ofstream(folder_ / "precious") << "data";
  std::filesystem::create_directories(folder_ / "logs");
  std::filesystem::create_symlink(folder_ / "precious", folder_ / "logs" / "rank-0.log");
  LaunchOptions options;
  options.command = {"/bin/true"};
  options.log_folder = folder_ / "logs";
  EXPECT_CONTAINS(message_of<UsageError>([&] { launch(options, report_); }), "rank-0.log is a symbolic link");
  EXPECT_EQ(read_file(folder_ / "precious"), "data");
}

TEST_F(Launcher, FollowsALinkToTheLogsOnlyIfTheUserNamesIt) {
  const std::filesystem::path target = folder_ / "target";
  for (const char* link : {"logs", "logs/launch"}) {
    const std::filesystem::path run_folder = folder_ / format("run of {}", std::string(link).size());
    std::filesystem::create_directories((run_folder / link).parent_path());
    std::filesystem::create_directories(target);
    std::filesystem::create_directory_symlink(target, run_folder / link);
    LaunchOptions options;
    options.command = {"/bin/true"};
    options.run_folder = run_folder;
    options.log_folder = run_folder / "logs" / "launch";
    EXPECT_CONTAINS(message_of<UsageError>([&] { launch(options, report_); }),
                    (run_folder / link).string() + " is a symbolic link");
    EXPECT_TRUE(std::filesystem::is_empty(target));
  }
  LaunchOptions options;
  options.command = {"/bin/true"};
  options.log_folder = folder_ / "run of 4" / "logs";
  EXPECT_EQ(launch(options, report_), 0);
  EXPECT_TRUE(std::filesystem::exists(target / "rank-0.log"));
}

TEST_F(Launcher, OnSeveralHostsNumbersTheRanksAndSetsTheRendezvous) {
  LaunchOptions options;
  options.nodes = 3;
  options.node = 1;
  options.rendezvous = "node-0:29400";
  options.shown = "";
  EXPECT_EQ(run("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
                "$MASTER_ADDR $MASTER_PORT $STEPFORGE_LAUNCH_ID ${STEPFORGE_STORE_LISTENER:-none}",
                2, options),
            0);
  EXPECT_EQ(log("rank-2.log"), "2 0 6 2 1 3 node-0 29400 node-0:29400 none\n");
  EXPECT_EQ(log("rank-3.log"), "3 1 6 2 1 3 node-0 29400 node-0:29400 none\n");
}

TEST_F(Launcher, OnOneHostRankZeroInheritsTheStoreListener) {
  EXPECT_EQ(run("if [ $RANK = 0 ]; then test -S /proc/self/fd/$STEPFORGE_STORE_LISTENER; "
                "else test -z \"$STEPFORGE_STORE_LISTENER\"; fi",
                2),
            0);
}

TEST_F(Launcher, RefusesInvalidOptionsForSeveralHosts) {
  const auto refusal = [&](int nodes, int node, const std::string& rendezvous, int restarts = 0) {
    LaunchOptions options;
    options.nodes = nodes;
    options.node = node;
    options.rendezvous = rendezvous;
    options.max_restarts = restarts;
    options.processes = 2;
    options.command = {"/bin/true"};
    return message_of<UsageError>([&] { launch(options, report_); });
  };
  EXPECT_EQ(refusal(0, 0, ""), "--nnodes 0 must be at least 1, and with --nproc 2 at most 1048576 ranks");
  EXPECT_EQ(refusal(2000000000, 0, "node:1"),
            "--nnodes 2000000000 must be at least 1, and with --nproc 2 at most 1048576 ranks");
  EXPECT_EQ(refusal(2, 2, "node:29400"), "--node-rank 2 must be between 0 and 1");
  EXPECT_CONTAINS(refusal(2, 0, ""), "--nnodes needs --rendezvous HOST:PORT");
  EXPECT_CONTAINS(refusal(2, 0, "node:29400", 1), "--max-restarts works on one host only");
  for (const char* text : {"node", "node:", ":29400", "node:0", "node:65536", "node:http"}) {
    EXPECT_EQ(refusal(2, 1, text),
              format("--rendezvous = \"{}\" is not HOST:PORT, such as node-0:29400", text));
  }
}

TEST(EscapeRemover, RemovesColoursAndStatusLines) {
  const auto plain = [](const std::vector<std::string>& pieces) {
    EscapeRemover filter;
    std::string text;
    for (const std::string& piece : pieces) text += filter.add(piece);
    return text;
  };
  EXPECT_EQ(plain({"\x1b[32mINFO\x1b[0m text\n"}), "INFO text\n");
  EXPECT_EQ(plain({"\r 25% loss 3.1\x1b[K", "\r\x1b[Kstep: 1\n\r 26% loss 3.0\x1b", "[K"}), "step: 1\n");
  EXPECT_EQ(plain({"10%\r20%\r30%\n"}), "10%30%\n");
  EXPECT_EQ(plain({"windows\r\nlines\r\n"}), "windows\nlines\n");
  EXPECT_EQ(plain({"\x1b]0;title\x07"}), "\x1b]0;title\x07");
  EXPECT_EQ(plain({"\r" + std::string(10000, 'x') + "\n"}).size(), 10002U);
}

TEST(RankList, AcceptsNumbersRangesAndAll) {
  EXPECT_EQ(parse_rank_list("0", 4), (std::set<int>{0}));
  EXPECT_EQ(parse_rank_list("0,2,4-6", 8), (std::set<int>{0, 2, 4, 5, 6}));
  EXPECT_EQ(parse_rank_list("all", 3), (std::set<int>{0, 1, 2}));
  for (const char* text : {"", "x", "1,", "-1", "3-1", "4", "0-4", "1-", "0 1", "99999999999"}) {
    EXPECT_THROW(parse_rank_list(text, 4), UsageError) << text;
  }
}

}  // namespace
}  // namespace stepforge::testing
