// SPDX-License-Identifier: Apache-2.0
// The choice of a job's engine, and worlds of several hosts.
#include "stepforge/engines/world.h"

#include <gtest/gtest.h>

#include "stepforge/comm/hierarchical_world.h"
#include "tests/engines/gloo_ranks.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// Rank `rank` of `size` ranks, `on_host` of them on each host.
RankEnvironment rank_environment(int rank, int size, int on_host, int port) {
  RankEnvironment environment;
  environment.rank = rank;
  environment.world_size = size;
  environment.local_rank = rank % on_host;
  environment.local_world_size = on_host;
  environment.launcher = Launcher::torchrun;
  environment.run_id = format("test of engines {}", port);
  environment.master_address = "127.0.0.1";
  environment.master_port = port;
  return environment;
}

CommConfig comm_config(CommBackend backend, double init_timeout = 60) {
  CommConfig config;
  config.backend = backend;
  config.init_timeout = init_timeout;
  return config;
}

/// An all-reduce over `size` processes: the result of each.
std::vector<std::string> sums(int size, int on_host, CommBackend backend) {
  const Listener listener;
  RankProcesses processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.start([&, rank] {
      RankEnvironment environment = rank_environment(rank, size, on_host, listener.port());
      if (rank == 0) environment.store_listener = listener.descriptor();
      const auto world = make_world(environment, comm_config(backend));
      std::vector<int32_t> values = {rank + 1};
      world->group("all", all_ranks(size))->all_reduce(writable_bytes_of(values), DType::i32);
      return std::to_string(values[0]);
    });
  }
  return processes.results();
}

TEST(MakeWorld, ConnectsTheRanksOfOneHostByEachBackend) {
  for (const CommBackend backend :
       {CommBackend::automatic, CommBackend::shared_memory, CommBackend::gloo, CommBackend::nccl}) {
    EXPECT_EQ(sums(2, 2, backend), (std::vector<std::string>{"3", "3"})) << choice_name(backend);
  }
}

TEST(MakeWorld, ConnectsSeveralHosts) {
  EXPECT_EQ(sums(4, 2, CommBackend::automatic), (std::vector<std::string>{"10", "10", "10", "10"}));
}

TEST(MakeWorld, ASingleRankDoesNotWait) {
  EXPECT_EQ(make_world({}, comm_config(CommBackend::gloo))->size(), 1);
}

TEST(MakeWorld, RefusesSharedMemoryAmongHosts) {
  const std::string message = message_of<UsageError>(
      [] { make_world(rank_environment(3, 4, 2, 29500), comm_config(CommBackend::shared_memory)); });
  EXPECT_CONTAINS(message, "torchrun started 4 ranks, 2 of them on this host");
}

TEST(MakeWorld, RefusesSeveralHostsWithoutARendezvousAddress) {
  RankEnvironment environment = rank_environment(3, 4, 2, 0);
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { make_world(environment, comm_config(CommBackend::automatic)); }),
      "MASTER_PORT");
  environment.master_port = 29500;
  environment.master_address = "";
  EXPECT_CONTAINS(
      message_of<UsageError>([&] { make_world(environment, comm_config(CommBackend::automatic)); }),
      "MASTER_ADDR");
}

TEST(MakeWorld, NamesAPortThatIsInUse) {
  const Listener listener;
  const std::string message = message_of<UsageError>(
      [&] { make_world(rank_environment(0, 2, 1, listener.port()), comm_config(CommBackend::gloo)); });
  EXPECT_CONTAINS(message, format("port {} is in use", listener.port()));
}

TEST(MakeWorld, NamesAnAddressThatDoesNotAnswer) {
  const int port = free_port();
  const std::string message = message_of<PeerError>(
      [&] { make_world(rank_environment(1, 2, 1, port), comm_config(CommBackend::gloo, 0.5)); });
  EXPECT_CONTAINS(message, format("127.0.0.1:{}", port));
}

TEST(MakeWorld, FailsAtTheDeadlineIfAListenerAcceptsButDoesNotAnswer) {
  const Listener silent;  // the kernel accepts connections for it
  const std::string message = message_of<PeerError>(
      [&] { make_world(rank_environment(1, 2, 1, silent.port()), comm_config(CommBackend::gloo, 0.5)); });
  EXPECT_CONTAINS(message, format("127.0.0.1:{}", silent.port()));
  EXPECT_CONTAINS(message, "within 0.5 s");
}

TEST(MakeWorld, NamesTheRanksThatNeverStart) {
  const Listener listener;
  RankProcesses processes;
  for (const int rank : {0, 2}) {
    processes.start([&, rank] {
      RankEnvironment environment = rank_environment(rank, 4, 2, listener.port());
      if (rank == 0) environment.store_listener = listener.descriptor();
      make_world(environment, comm_config(CommBackend::gloo, rank == 0 ? 1 : 60));
      return std::string("joined");
    });
  }
  for (const std::string& result : processes.results()) {
    EXPECT_CONTAINS(result, "PeerError");
    EXPECT_CONTAINS(result, "for rank 1 (not connected), rank 3 (not connected)");
  }
}

TEST(MakeWorld, RefusesAnUnknownInterface) {
  const Listener listener;
  CommConfig config = comm_config(CommBackend::gloo);
  config.interface = "nothing0";
  RankEnvironment environment = rank_environment(0, 2, 1, listener.port());
  environment.store_listener = dup(listener.descriptor());
  EXPECT_CONTAINS(message_of<UsageError>([&] { make_world(environment, config); }), "nothing0");
}

TEST(MakeWorld, RefusesAMasterAddressThatResolvesToLoopback) {
  const Listener listener;
  RankEnvironment environment = rank_environment(0, 2, 1, listener.port());
  environment.store_listener = dup(listener.descriptor());
  environment.master_address = "LOCALHOST";  // unlike "localhost", not accepted as deliberate
  const std::string message =
      message_of<UsageError>([&] { make_world(environment, comm_config(CommBackend::gloo)); });
  EXPECT_CONTAINS(message, "MASTER_ADDR = \"LOCALHOST\" resolves to ");
  EXPECT_CONTAINS(message, "comm.interface");
}

/// Ranks 0 and 2 on one host, 1 and 3 on another.
std::vector<std::string> run_on_two_hosts(const RankBody& body) {
  const Listener listener;
  RankProcesses processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.start([&, rank] {
      auto store = tcp_store({"127.0.0.1", listener.port()}, rank == 0, {60, 60},
                             rank == 0 ? std::optional(listener.descriptor()) : std::nullopt);
      MessageWorldOptions options = options_of(rank, 4, {60, 60});
      options.rank_zero_holds_store = true;
      const auto world =
          hierarchical_world(format("{} {}", getppid(), listener.port()), rank % 2 == 0 ? "even" : "odd",
                             [&](const auto& on_failure) {
                               options.on_failure = on_failure;
                               return gloo_world(std::move(store), options);
                             },
                             {60, 60});
      return body(*world);
    });
  }
  return processes.results();
}

TEST(HierarchicalWorld, HasGroupsWithinAndAmongHosts) {
  const auto results = run_on_two_hosts([](World& world) {
    const auto near = world.group("near", {world.rank() % 2, world.rank() % 2 + 2});
    const auto far = world.group("far", {world.rank() / 2 * 2, world.rank() / 2 * 2 + 1});
    const auto all = world.group("all", all_ranks(4));
    std::vector<int32_t> values = {1 << world.rank()};
    near->all_reduce(writable_bytes_of(values), DType::i32);
    const int32_t of_near = values[0];
    far->all_reduce(writable_bytes_of(values), DType::i32);
    const int32_t of_far = values[0];
    all->all_reduce(writable_bytes_of(values), DType::i32);
    return format("{} {} {}", of_near, of_far, values[0]);
  });
  EXPECT_EQ(results, (std::vector<std::string>{"5 15 60", "10 15 60", "5 15 60", "10 15 60"}));
}

TEST(HierarchicalWorld, AFailureReachesGroupsOfTheOtherHost) {
  const auto results = run_on_two_hosts([](World& world) {
    const auto near = world.group("near", {world.rank() % 2, world.rank() % 2 + 2});
    if (world.rank() == 0) {
      usleep(100000);
      world.abort("the disk is full");
      return std::string("aborted");
    }
    if (world.rank() != 3) near->barrier();
    if (world.rank() == 3) usleep(300000);
    return std::string("completed");
  });
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_CONTAINS(results[rank], "PeerError: rank 0: the disk is full");
  }
}

}  // namespace
}  // namespace stepforge::testing
