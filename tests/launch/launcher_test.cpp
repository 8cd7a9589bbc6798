// The launcher with small shell programs as ranks.
#include "stepforge/launch/launcher.h"

#include <csignal>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

class Launcher : public ::testing::Test {
 protected:
  /// Runs `script` in a shell as every rank.
  int run(const std::string& script, int processes, LaunchOptions options = {}) {
    options.processes = processes;
    options.notice_seconds = 0.1;
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

TEST_F(Launcher, ReplacesVariablesThatItsOwnLauncherSet) {
  LaunchOptions options;
  options.log_folder = folder_ / "logs";
  options.command = {"/usr/bin/env"};  // a shell would show each variable once
  options.shown = "";
  setenv("RANK", "7", 1);
  EXPECT_EQ(launch(options, report_), 0);
  unsetenv("RANK");
  EXPECT_TRUE(contains(log("rank-0.log"), "\nRANK=0\n"));
  EXPECT_FALSE(contains(log("rank-0.log"), "\nRANK=7\n"));
}

TEST_F(Launcher, ShowsRankZeroAsItIsAndLogsAll) {
  EXPECT_EQ(run("printf \"out $RANK\"; printf \"err $RANK\" >&2", 2), 0);
  EXPECT_EQ(out_, "out 0");
  EXPECT_EQ(err_, "err 0");
  for (int rank = 0; rank < 2; ++rank) {
    const std::string text = log(format("rank-{}.log", rank));
    EXPECT_TRUE(contains(text, format("out {}", rank)));
    EXPECT_TRUE(contains(text, format("err {}", rank)));
  }
}

TEST_F(Launcher, ShowsSeveralRanksInWholeLinesWithTheirNumbers) {
  LaunchOptions options;
  options.shown = "1,2";
  EXPECT_EQ(run("printf \"a\"; sleep 0.0$RANK; printf \"b\\nc\"", 3, options), 0);
  for (const char* line : {"[rank 1] ab\n", "[rank 1] c\n", "[rank 2] ab\n", "[rank 2] c\n"}) {
    EXPECT_TRUE(contains(out_, line));
  }
  EXPECT_FALSE(contains(out_, "[rank 0]"));
}

TEST_F(Launcher, LosesNothingOfALongOutput) {
  EXPECT_EQ(run("i=0; while [ $i -lt 20000 ]; do echo \"line $i of a long output\"; i=$((i+1)); done", 1), 0);
  EXPECT_EQ(out_, log("rank-0.log"));
  EXPECT_TRUE(out_.ends_with("line 19999 of a long output\n"));
}

TEST_F(Launcher, TheFirstFailureEndsTheOthersAndGivesTheCode) {
  EXPECT_EQ(run("if [ $RANK = 1 ]; then echo the disk is full >&2; exit 7; fi; exec sleep 1000", 3), 7);
  EXPECT_TRUE(contains(report(), "rank 1 of 3 failed with exit code 7"));
  EXPECT_TRUE(contains(report(), "rank-1.log"));
  EXPECT_TRUE(contains(report(), "the disk is full"));
}

TEST_F(Launcher, LetsRanksThatNoticeAFailureEndByThemselves) {
  // Rank 1 goes on until the launcher has seen the end of rank 0.
  EXPECT_EQ(run(R"(
    trap 'echo told to end; exit 1' TERM
    if [ $RANK = 0 ]; then echo $$ >$1/new; mv $1/new $1/failed; exit 6; fi
    while [ ! -e $1/failed ]; do sleep 0.01; done
    while kill -0 $(cat $1/failed) 2>/dev/null; do sleep 0.01; done
    echo rank 0 has failed
    exit 1)",
                2),
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
  EXPECT_TRUE(contains(report(), "rank 0 of 2 failed with exit code 3"));
}

TEST_F(Launcher, TellsOfARankThatASignalEnded) {
  EXPECT_EQ(run("if [ $RANK = 1 ]; then kill -KILL $$; fi; exec sleep 1000", 2), 128 + SIGKILL);
  EXPECT_TRUE(contains(report(), "rank 1 of 2 was ended by signal 9 (Killed)"));
}

TEST_F(Launcher, ReportsOnlyTheLastLines) {
  EXPECT_EQ(run("i=0; while [ $i -lt 5000 ]; do echo \"line $i.\"; i=$((i+1)); done; exit 1", 1), 1);
  EXPECT_TRUE(contains(report(), "line 4988.\n"));
  EXPECT_TRUE(contains(report(), "line 4999.\n"));
  EXPECT_FALSE(contains(report(), "line 4987.\n"));
}

TEST_F(Launcher, StartsAllRanksAgainAfterAFailure) {
  LaunchOptions options;
  options.max_restarts = 2;
  const std::string script =
      "echo attempt $TORCHELASTIC_RESTART_COUNT; if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; "
      "then exit "
      "5; fi; if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then exec sleep 1000; fi";
  EXPECT_EQ(run(script, 2, options), 0);
  EXPECT_TRUE(contains(report(), "restart 2 of 2"));
  EXPECT_EQ(log("rank-1.log"), "attempt 0\n");
  EXPECT_EQ(log("rank-0.restart-2.log"), "attempt 2\n");
}

TEST_F(Launcher, GivesUpAfterTheLastRestart) {
  LaunchOptions options;
  options.max_restarts = 1;
  EXPECT_EQ(run("exit 9", 2, options), 9);
  EXPECT_TRUE(contains(report(), "restart 1 of 1"));
}

TEST_F(Launcher, DoesNotRepeatWrongUse) {
  LaunchOptions options;
  options.max_restarts = 5;
  EXPECT_EQ(run("exit 2", 1, options), 2);
  EXPECT_FALSE(contains(report(), "restart"));
}

TEST_F(Launcher, PassesSignalsOnAndDoesNotRestartThen) {
  LaunchOptions options;
  options.max_restarts = 5;
  // Rank 0 signals the launcher once all are ready; each rank ends in order by itself.
  const std::string script =
      "trap 'echo got it; exit 130' TERM; touch $1/ready-$RANK; while [ ! -e $1/ready-0 ] || [ ! -e "
      "$1/ready-1 ]; do "
      "sleep 0.01; done; if [ $RANK = 0 ]; then kill -TERM $PPID; fi; while true; do sleep 0.02; done";
  EXPECT_EQ(run(script, 2, options), 130);
  EXPECT_EQ(log("rank-0.log"), "got it\n");
  EXPECT_EQ(log("rank-1.log"), "got it\n");
  EXPECT_FALSE(contains(report(), "restart"));
}

TEST_F(Launcher, KeepsItsRanksOutOfTheTerminalsProcessGroup) {
  EXPECT_EQ(run("ps -o pgid= -p $$ | tr -d ' '; echo $$", 1), 0);
  const std::string group = out_.substr(0, out_.find('\n'));
  EXPECT_EQ(out_, group + "\n" + group + "\n");
}

TEST_F(Launcher, TellsOfAProgramThatCannotBeRun) {
  LaunchOptions options;
  options.log_folder = folder_ / "logs";
  options.command = {(folder_ / "nothing").string()};
  options.shown = "";
  EXPECT_EQ(launch(options, report_), 127);
  EXPECT_TRUE(contains(report(), "this program cannot be run"));
}

TEST_F(Launcher, RefusesWrongOptions) {
  LaunchOptions options;
  options.log_folder = folder_ / "logs";
  EXPECT_THROW(launch(options, report_), UsageError);
  options.command = {"/bin/true"};
  options.processes = 0;
  EXPECT_THROW(launch(options, report_), UsageError);
  options.processes = 1;
  options.max_restarts = -1;
  EXPECT_THROW(launch(options, report_), UsageError);
  options.max_restarts = 0;
  std::ofstream(folder_ / "file") << "x";
  options.log_folder = folder_ / "file" / "logs";
  EXPECT_THROW(launch(options, report_), Error);
}

TEST_F(Launcher, OfSeveralHostsOnlyNumbersRanksAndNamesWhereTheyMeet) {
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

TEST_F(Launcher, OnOneHostRankZeroGetsTheListenerOfItsPort) {
  EXPECT_EQ(run("if [ $RANK = 0 ]; then test -S /proc/self/fd/$STEPFORGE_STORE_LISTENER; "
                "else test -z \"$STEPFORGE_STORE_LISTENER\"; fi",
                2),
            0);
}

TEST_F(Launcher, RefusesWrongOptionsOfSeveralHosts) {
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
  EXPECT_EQ(refusal(0, 0, ""), "--nnodes 0 must be at least 1, and with --nproc 2 at most 16777216 ranks");
  EXPECT_EQ(refusal(2000000000, 0, "node:1"),
            "--nnodes 2000000000 must be at least 1, and with --nproc 2 at most 16777216 ranks");
  EXPECT_EQ(refusal(2, 2, "node:29400"), "--node-rank 2 must be between 0 and 1");
  EXPECT_TRUE(contains(refusal(2, 0, ""), "--nnodes needs --rendezvous HOST:PORT"));
  EXPECT_TRUE(contains(refusal(2, 0, "node:29400", 1), "--max-restarts works on one host only"));
  for (const char* text : {"node", "node:", ":29400", "node:0", "node:65536", "node:http"}) {
    EXPECT_EQ(refusal(2, 1, text),
              format("--rendezvous = \"{}\" is not HOST:PORT, such as node-0:29400", text));
  }
}

TEST(RankList, IsNumbersRangesOrAll) {
  EXPECT_EQ(parse_rank_list("0", 4), (std::set<int>{0}));
  EXPECT_EQ(parse_rank_list("0,2,4-6", 8), (std::set<int>{0, 2, 4, 5, 6}));
  EXPECT_EQ(parse_rank_list("all", 3), (std::set<int>{0, 1, 2}));
  for (const char* text : {"", "x", "1,", "-1", "3-1", "4", "0-4", "1-", "0 1", "99999999999"}) {
    EXPECT_THROW(parse_rank_list(text, 4), UsageError) << text;
  }
}

}  // namespace
}  // namespace stepforge::testing
