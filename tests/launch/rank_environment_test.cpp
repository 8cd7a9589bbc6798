// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/rank_environment.h"

#include <map>

#include <gtest/gtest.h>

#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Environment = std::map<std::string, std::string>;

RankEnvironment discover(const Environment& variables) {
  return discover_ranks([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string refusal_of(const Environment& variables) {
  return message_of<UsageError>([&] { discover(variables); });
}

Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Environment without(Environment base, const std::string& name) {
  base.erase(name);
  return base;
}

const Environment torchrun = {{"RANK", "3"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "1"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "localhost"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_RUN_ID", "none"},
                              {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Environment slurm = {{"SLURM_PROCID", "5"},  {"SLURM_STEP_NUM_TASKS", "11"},
                           {"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                           {"SLURM_NODEID", "1"},  {"SLURM_JOB_ID", "77"},
                           {"SLURM_STEP_ID", "0"}};
const Environment open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "host-1234@1"}};

void expect_rank(const RankEnvironment& found, stepforge::Launcher launcher,
                 const std::vector<int>& numbers) {
  EXPECT_EQ(found.launcher, launcher);
  EXPECT_EQ((std::vector<int>{found.rank, found.world_size, found.local_rank, found.local_world_size}),
            numbers);
}

TEST(RankEnvironment, IsASingleRankWithoutALauncher) {
  expect_rank(discover({}), stepforge::Launcher::none, {0, 1, 0, 1});
  EXPECT_EQ(discover({}).run_id, "");
}

TEST(RankEnvironment, IsReadFromEachLauncher) {
  expect_rank(discover(torchrun), stepforge::Launcher::torchrun, {3, 4, 1, 2});
  expect_rank(discover(with(torchrun, {{"STEPFORGE_LAUNCH_ID", "x"}})), stepforge::Launcher::stepforge,
              {3, 4, 1, 2});
  expect_rank(discover(slurm), stepforge::Launcher::slurm, {5, 11, 1, 4});
  expect_rank(discover(open_mpi), stepforge::Launcher::open_mpi, {1, 2, 1, 2});
}

TEST(RankEnvironment, AcceptsRankAndWorldSizeSetByHand) {
  expect_rank(discover({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), stepforge::Launcher::torchrun, {1, 2, 0, 1});
}

TEST(RankEnvironment, CountsTheTasksOfASlurmNode) {
  const auto local_size = [](const std::string& list, const std::string& node) {
    return discover(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", list}, {"SLURM_NODEID", node}}))
        .local_world_size;
  };
  EXPECT_EQ(local_size("4(x2),3", "0"), 4);
  EXPECT_EQ(local_size("4(x2),3", "2"), 3);
  EXPECT_EQ(local_size("2,4,5(x12)", "1"), 4);
  EXPECT_EQ(local_size("2,4,5(x12)", "13"), 5);
  EXPECT_EQ(local_size("11", "0"), 11);
  for (const char* list : {"", "4(x2", "4(x2),", "x", "-1"}) {
    const Environment bad = with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", list}, {"SLURM_NODEID", "2"}});
    EXPECT_CONTAINS(refusal_of(bad), "SLURM_STEP_TASKS_PER_NODE");
  }
}

TEST(RankEnvironment, IgnoresTheVariablesOfASlurmBatchScript) {
  expect_rank(discover(without(slurm, "SLURM_STEP_ID")), stepforge::Launcher::none, {0, 1, 0, 1});
}

TEST(RankEnvironment, RefusesTwoLaunchersThatDisagreeAndNamesBoth) {
  const std::string message = refusal_of(with(open_mpi, slurm));
  for (const char* part : {"rank 1 of 2", "Open MPI", "rank 5 of 11", "Slurm", "unset"}) {
    EXPECT_CONTAINS(message, part);
  }
  EXPECT_NE(refusal_of(with({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, open_mpi)), "");
  const Environment agreeing = with({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, open_mpi);
  expect_rank(discover(agreeing), stepforge::Launcher::torchrun, {1, 2, 0, 1});
}

TEST(RankEnvironment, PrefersAnAgentToTheSlurmTaskAroundIt) {
  expect_rank(discover(with(torchrun, slurm)), stepforge::Launcher::torchrun, {3, 4, 1, 2});
}

TEST(RankEnvironment, RefusesMalformedAndMissingVariablesByName) {
  const std::vector<std::pair<Environment, std::vector<std::string>>> numbers = {
      {torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}},
      {slurm, {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID"}},
      {open_mpi,
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE"}}};
  for (const auto& [base, names] : numbers) {
    for (const std::string& name : names) {
      for (const char* bad : {"", "x", "-1", "1x", "99999999999"}) {
        EXPECT_CONTAINS(refusal_of(with(base, {{name, bad}})), format("{} = \"{}\"", name, bad));
      }
    }
  }
  EXPECT_CONTAINS(refusal_of(without(torchrun, "WORLD_SIZE")), "WORLD_SIZE is not");
  EXPECT_CONTAINS(refusal_of(without(torchrun, "RANK")), "RANK is not");
  EXPECT_CONTAINS(refusal_of(without(slurm, "SLURM_STEP_NUM_TASKS")), "SLURM_STEP_NUM_TASKS is not");
  EXPECT_CONTAINS(refusal_of(without(open_mpi, "OMPI_COMM_WORLD_SIZE")), "OMPI_COMM_WORLD_SIZE is not");
}

TEST(RankEnvironment, RefusesNumbersThatContradictEachOther) {
  EXPECT_CONTAINS(refusal_of(with(torchrun, {{"RANK", "4"}})), "outside the world");
  EXPECT_CONTAINS(refusal_of(with(torchrun, {{"WORLD_SIZE", "0"}})), "at least one");
  EXPECT_CONTAINS(refusal_of(with(torchrun, {{"WORLD_SIZE", "1000000000"}})), "at most 1,048,576 ranks");
  EXPECT_CONTAINS(refusal_of(with(torchrun, {{"WORLD_SIZE", "5000"}, {"LOCAL_WORLD_SIZE", "5000"}})),
                  "a host has at most 4,096 ranks");
  EXPECT_CONTAINS(refusal_of(with(torchrun, {{"LOCAL_RANK", "2"}})), "outside its host");
  EXPECT_CONTAINS(refusal_of(with(torchrun, {{"LOCAL_WORLD_SIZE", "5"}})), "more ranks than the world");
}

TEST(RunId, IsTheSameOnAllRanksAndDifferentForEveryStart) {
  const auto id = [](const Environment& variables) { return discover(variables).run_id; };
  EXPECT_EQ(id(torchrun), id(with(torchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}})));
  EXPECT_NE(id(torchrun), id(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}})));
  EXPECT_NE(id(torchrun), id(with(torchrun, {{"TORCHELASTIC_RUN_ID", "other"}})));
  EXPECT_NE(id(torchrun), id(with(torchrun, {{"MASTER_PORT", "29501"}})));
  EXPECT_EQ(id(slurm),
            id(with(slurm, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "0"}})));
  EXPECT_NE(id(slurm), id(with(slurm, {{"SLURM_STEP_ID", "1"}})));
  EXPECT_NE(id(slurm), id(with(slurm, {{"SLURM_RESTART_COUNT", "1"}})));
  EXPECT_NE(id(open_mpi), id(with(open_mpi, {{"PMIX_NAMESPACE", "host-1234@2"}})));
}

TEST(RankEnvironment, LaunchIdIsTheSameAfterARestart) {
  const Environment named = with(torchrun, {{"TORCHELASTIC_RUN_ID", "abc"}});
  EXPECT_EQ(discover(named).launch_id, "abc");
  EXPECT_EQ(discover(named).restarts, 0);
  const auto restarted = discover(with(named, {{"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_EQ(restarted.launch_id, "abc");
  EXPECT_EQ(restarted.restarts, 2);
  EXPECT_EQ(discover(torchrun).launch_id, "") << "torchrun's default id";
}

TEST(RankEnvironment, ReadsMasterAddressAndPort) {
  const RankEnvironment of_torchrun = discover(torchrun);
  EXPECT_EQ(of_torchrun.master_address, "localhost");
  EXPECT_EQ(of_torchrun.master_port, 29500);
  EXPECT_FALSE(of_torchrun.launcher_holds_store);
  EXPECT_TRUE(discover(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).launcher_holds_store);
  EXPECT_EQ(discover(open_mpi).master_address, "");
  EXPECT_EQ(discover(open_mpi).master_port, 0);
  const RankEnvironment of_mpi =
      discover(with(open_mpi, {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "4711"}}));
  EXPECT_EQ(of_mpi.master_address, "10.0.0.7");
  EXPECT_EQ(of_mpi.master_port, 4711);
  for (const char* port : {"0", "65536", "http", "-1", ""}) {
    EXPECT_CONTAINS(refusal_of(with(torchrun, {{"MASTER_PORT", port}})), "MASTER_PORT") << port;
  }
}

TEST(RankEnvironment, UsesTheFirstHostOfASlurmStep) {
  const auto address = [](const std::string& list) {
    return discover(with(slurm, {{"SLURM_STEP_NODELIST", list}})).master_address;
  };
  EXPECT_EQ(address("node7"), "node7");
  EXPECT_EQ(address("node7,node9"), "node7");
  EXPECT_EQ(address("node[03-07,12],login1"), "node03");
  EXPECT_EQ(address("node[12,14]"), "node12");
  EXPECT_EQ(address("node[5]"), "node5");
  EXPECT_EQ(address("node["), "");
  const int port = discover(slurm).master_port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 30000);
  EXPECT_NE(discover(with(slurm, {{"SLURM_JOB_ID", "78"}})).master_port, port);
  EXPECT_EQ(discover(with(slurm, {{"MASTER_PORT", "4711"}})).master_port, 4711);
}

}  // namespace
}  // namespace stepforge::testing
