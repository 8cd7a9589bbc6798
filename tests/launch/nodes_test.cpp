// Launchers of several nodes, here as processes of one host, with small shell programs as ranks.
#include "stepforge/launch/nodes.h"

#include <csignal>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "stepforge/launch/launcher.h"
#include "stepforge/launch/tcp_socket.h"
#include "tests/launch/listener.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

class NodesTest : public ::testing::Test {
 protected:
  LaunchOptions options_of(int node, int nodes, const std::string& script) const {
    LaunchOptions options;
    options.processes = 2;
    options.nodes = nodes;
    options.node = node;
    options.rendezvous = format("127.0.0.1:{}", port_);
    options.init_seconds = 60;
    options.notice_seconds = 0.1;
    options.grace_seconds = 1;
    options.log_folder = folder_ / format("logs-{}", node);
    options.shown = "";
    options.command = {"/bin/sh", "-c", script, "rank", folder_.path().string()};
    return options;
  }

  /// Starts a launcher; its result is "<exit code>: <report>".
  void start(const LaunchOptions& options) {
    launchers_.start([options] {
      std::ostringstream report;
      const int code = launch(options, report);
      return format("{}: {}", code, report.str());
    });
  }
  /// All nodes run the script.
  std::vector<std::string> run(int nodes, const std::string& script, int max_restarts = 0) {
    for (int node = 0; node < nodes; ++node) {
      LaunchOptions options = options_of(node, nodes, script);
      options.max_restarts = max_restarts;
      start(options);
    }
    return launchers_.results();
  }
  std::string log(int node, const std::string& name) const {
    return read_file(folder_ / format("logs-{}", node) / name);
  }

  TempFolder folder_;  ///< $1 of the scripts
  int port_ = free_port();
  RankProcesses launchers_;
};

TEST_F(NodesTest, NumberTheirRanksNodeByNode) {
  const auto results = run(3,
                           "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR; "
                           "echo $TORCHELASTIC_RUN_ID $MASTER_PORT > $1/rank-$RANK; test $MASTER_PORT -gt 0");
  EXPECT_EQ(results, (std::vector<std::string>{"0: ", "0: ", "0: "}));
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(log(rank / 2, format("rank-{}.log", rank)),
              format("{} {} 6 2 {} 127.0.0.1\n", rank, rank % 2, rank / 2));
    EXPECT_EQ(read_file(folder_ / format("rank-{}", rank)), read_file(folder_ / "rank-0"));
  }
}

TEST_F(NodesTest, RankZeroFindsItsPortOpen) {
  const auto results = run(2,
                           "if [ $RANK = 0 ]; then test -S /proc/self/fd/$STEPFORGE_STORE_LISTENER; "
                           "else test -z \"$STEPFORGE_STORE_LISTENER\"; fi");
  EXPECT_EQ(results, (std::vector<std::string>{"0: ", "0: "}));
}

TEST_F(NodesTest, TheFirstFailureEndsAllNodesWithItsMessage) {
  const auto results =
      run(3, "if [ $RANK = 3 ]; then sleep 0.2; echo the disk is full >&2; exit 7; fi; exec sleep 1000");
  for (const std::string& result : results) {
    EXPECT_TRUE(contains(result, "7: rank 3 of 6 failed with exit code 7 on node 1"));
    EXPECT_TRUE(contains(result, "the disk is full"));
  }
}

TEST_F(NodesTest, ARestartStartsTheRanksOfAllNodesAgain) {
  const auto results =
      run(2,
          "echo attempt $TORCHELASTIC_RESTART_COUNT; if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; "
          "then exit 0; fi; if [ $RANK = 2 ]; then exit 5; fi; exec sleep 1000",
          1);
  for (const std::string& result : results)
    EXPECT_TRUE(contains(result, "0: rank 2 of 4 failed with exit code 5"));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(log(rank / 2, format("rank-{}.log", rank)), "attempt 0\n");
    EXPECT_EQ(log(rank / 2, format("rank-{}.restart-1.log", rank)), "attempt 1\n");
  }
}

TEST_F(NodesTest, DoNotRepeatWrongUse) {
  for (const std::string& result : run(2, "if [ $RANK = 3 ]; then exit 2; fi; exec sleep 1000", 5)) {
    EXPECT_TRUE(contains(result, "2: rank 3 of 4 failed with exit code 2"));
    EXPECT_FALSE(contains(result, "restart"));
  }
}

TEST_F(NodesTest, PassSignalsToTheRanksOfAllNodes) {
  const std::string script =
      "trap 'echo got it; exit 130' TERM; touch $1/ready-$RANK; while [ ! -e $1/ready-0 ] || [ ! -e "
      "$1/ready-1 ] "
      "|| [ ! -e $1/ready-2 ] || [ ! -e $1/ready-3 ]; do sleep 0.01; done; if [ $RANK = 2 ]; then kill -TERM "
      "$PPID; fi; while true; do sleep 0.02; done";
  for (const std::string& result : run(2, script, 3)) EXPECT_EQ(result, "130: ");
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(log(rank / 2, format("rank-{}.log", rank)), "got it\n");
}

TEST_F(NodesTest, OneInterruptionIsOneSignalForEveryRankHoweverManyLaunchersGetIt) {
  for (const std::string who : {"$RANK = 2", "$LOCAL_RANK = 0"}) {
    const std::string script =
        "trap 'echo got it; got=yes' TERM; touch $1/ready-$RANK; while [ ! -e $1/ready-0 ] || [ ! -e "
        "$1/ready-1 ] || [ ! -e $1/ready-2 ] || [ ! -e $1/ready-3 ]; do sleep 0.01; done; if [ " +
        who +
        " ]; then kill -TERM $PPID; fi; while [ -z \"$got\" ]; do sleep 0.02; done; sleep 0.6; rm -f "
        "$1/ready-$RANK; exit 130";
    for (const std::string& result : run(2, script, 3)) EXPECT_EQ(result, "130: ");
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(log(rank / 2, format("rank-{}.log", rank)), "got it\n");
  }
}

TEST_F(NodesTest, ANodeThatNeverComesIsNamedOnAllOthers) {
  for (const int node : {0, 2}) {
    LaunchOptions options = options_of(node, 4, "true");
    if (node == 0) options.init_seconds = 1;
    start(options);
  }
  for (const std::string& result : launchers_.results()) {
    EXPECT_TRUE(contains(result, "node 1, node 3 did not come to 127.0.0.1:"));
  }
}

TEST_F(NodesTest, ALeaderThatNeverComesIsNamed) {
  LaunchOptions options = options_of(1, 2, "true");
  options.init_seconds = 0.5;
  start(options);
  EXPECT_TRUE(contains(launchers_.results()[0], "node 1: node 0's launcher did not answer at 127.0.0.1:"));
}

TEST_F(NodesTest, AnInterruptionEndsTheWaitForOthers) {
  start(options_of(0, 2, "true"));
  usleep(300000);
  kill(launchers_.process(0), SIGINT);
  EXPECT_EQ(launchers_.results()[0], "130: ");
}

TEST_F(NodesTest, APortInUseIsNamed) {
  const Listener other;
  LaunchOptions options = options_of(0, 2, "true");
  options.rendezvous = format("127.0.0.1:{}", other.port());
  std::ostringstream report;
  const std::string message = message_of<UsageError>([&] { launch(options, report); });
  EXPECT_TRUE(contains(message, format("cannot listen at 127.0.0.1:{}", other.port())));
}

TEST_F(NodesTest, ALauncherThatIsKilledEndsTheOthersWithoutARestart) {
  for (const int victim : {0, 1}) {
    RankProcesses launchers;
    port_ = free_port();
    for (int node = 0; node < 2; ++node) {
      LaunchOptions options = options_of(node, 2, format("touch $1/up-{}-$RANK; exec sleep 1000", victim));
      options.max_restarts = 3;
      launchers.start([options] {
        std::ostringstream report;
        const int code = launch(options, report);
        return format("{}: {}", code, report.str());
      });
    }
    while (!std::filesystem::exists(folder_ / format("up-{}-0", victim)) ||
           !std::filesystem::exists(folder_ / format("up-{}-2", victim))) {
      usleep(5000);
    }
    kill(launchers.process(static_cast<std::size_t>(victim)), SIGKILL);
    const std::string result = launchers.results()[static_cast<std::size_t>(1 - victim)];
    EXPECT_TRUE(
        contains(result, victim == 0 ? "node 0's launcher at 127.0.0.1" : "the launcher of node 1 is gone"));
    EXPECT_FALSE(contains(result, "restart"));
  }
}

TEST_F(NodesTest, RefuseAnotherNumberOfNodesOrRestartsAndANodeThatIsThere) {
  LaunchOptions wrong_nodes = options_of(1, 3, "true");
  LaunchOptions wrong_restarts = options_of(1, 2, "true");
  wrong_restarts.max_restarts = 1;
  LaunchOptions leader = options_of(0, 2, "true");
  start(leader);
  start(wrong_nodes);
  start(wrong_restarts);
  usleep(1000000);
  start(options_of(1, 2, "true"));
  const auto results = launchers_.results();
  EXPECT_TRUE(contains(results[0], "0: refused a launcher at 127.0.0.1"));
  EXPECT_TRUE(contains(results[1], "--nnodes 3 there, --nnodes 2 on node 0"));
  EXPECT_TRUE(contains(results[2], "--max-restarts 1 there, --max-restarts 0 on node 0"));
  EXPECT_EQ(results[3], "0: ");
}

TEST_F(NodesTest, RefuseASecondLauncherOfTheSameNode) {
  start(options_of(0, 3, "true"));
  start(options_of(1, 3, "true"));
  usleep(500000);
  start(options_of(1, 3, "true"));
  usleep(500000);
  start(options_of(2, 3, "true"));
  const auto results = launchers_.results();
  EXPECT_EQ(results[1], "0: ");
  EXPECT_TRUE(contains(results[2], "--node-rank 1 is there already"));
  EXPECT_EQ(results[3], "0: ");
}

TEST_F(NodesTest, StrangersWhoConnectChangeNothing) {
  start(options_of(0, 2, "true"));
  const auto say = [&](const std::string& text) {
    std::string failure;
    Descriptor socket;
    while (!socket) socket = connect_to({"127.0.0.1", port_}, 1, failure);
    EXPECT_EQ(::send(socket.number(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    usleep(20000);
  };
  say("GET / HTTP/1.1\r\n\r\n");
  say("{\"kind\": \"hello\"}\n");
  say("{\"kind\": \"hello\", \"version\": 3}\n");
  say("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]\n");
  say(std::string(300000, 'x'));
  say("");
  start(options_of(1, 2, "true"));
  const auto results = launchers_.results();
  EXPECT_TRUE(results[0].starts_with("0: ")) << results[0];
  EXPECT_EQ(results[1], "0: ");
}

TEST(NodeOptions, AreChecked) {
  std::ostringstream report;
  const auto refusal = [&](int nodes, int node, const std::string& rendezvous) {
    NodesOptions options;
    options.nodes = nodes;
    options.node = node;
    options.rendezvous = rendezvous;
    return message_of<UsageError>([&] { meet_nodes(options, report); });
  };
  EXPECT_TRUE(contains(refusal(0, 0, ""), "--nnodes 0"));
  EXPECT_TRUE(contains(refusal(2, 2, "node:29400"), "--node-rank 2"));
  EXPECT_TRUE(contains(refusal(2, 0, ""), "--rendezvous"));
  for (const char* text : {"node", "node:", ":29400", "node:0", "node:65536", "node:http"}) {
    EXPECT_TRUE(contains(refusal(2, 1, text), "HOST:PORT")) << text;
  }
  EXPECT_EQ(parse_tcp_address("[::1]:80", "").host, "::1");
}

}  // namespace
}  // namespace stepforge::testing
