// SPDX-License-Identifier: Apache-2.0
// The tests of every engine on Gloo, and Gloo's own.
#include <csignal>

#include <gtest/gtest.h>

#include "tests/comm/exchange_failures_suite.h"
#include "tests/comm/exchanges_suite.h"
#include "tests/engines/gloo_ranks.h"

namespace stepforge::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(OfThreads, Collectives,
                         ::testing::Combine(::testing::Values(as_gloo_threads()),
                                            ::testing::Values(2, 3, 5, 8)),
                         collectives_name);
INSTANTIATE_TEST_SUITE_P(OfProcesses, Collectives,
                         ::testing::Combine(::testing::Values(as_gloo_processes()), ::testing::Values(3)),
                         collectives_name);
INSTANTIATE_TEST_SUITE_P(Of, Groups, ::testing::Values(as_gloo_threads(), as_gloo_processes()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Of, Failures, ::testing::Values(as_gloo_threads(), as_gloo_processes()),
                         [](const auto& info) { return info.param.name; });

/// A call of each kind of collective.
const std::vector<std::pair<std::string, std::function<void(Communicator&, std::vector<float>&)>>> kKinds = {
    {"all_gather",
     [](Communicator& group, std::vector<float>& values) {
       std::vector<float> whole(values.size() * 3);
       group.all_gather(bytes_of(values), writable_bytes_of(whole));
     }},
    {"reduce_scatter",
     [](Communicator& group, std::vector<float>& values) {
       std::vector<float> part(values.size() / 3);
       group.reduce_scatter(bytes_of(values), writable_bytes_of(part), DType::f32);
     }},
    {"all_reduce",
     [](Communicator& group, std::vector<float>& values) {
       group.all_reduce(writable_bytes_of(values), DType::f32);
     }},
    {"broadcast",
     [](Communicator& group, std::vector<float>& values) { group.broadcast(writable_bytes_of(values), 1); }},
    {"barrier", [](Communicator& group, std::vector<float>&) { group.barrier(); }},
    {"all_to_all",
     [](Communicator& group, std::vector<float>& values) {
       std::vector<float> incoming(values.size());
       const std::vector<std::size_t> sizes(3, values.size() / 3 * sizeof(float));
       group.all_to_all(bytes_of(values), sizes, writable_bytes_of(incoming), sizes);
     }},
    {"send_receive", [](Communicator& group, std::vector<float>& values) {
       std::vector<float> incoming(values.size());
       group.send_receive(bytes_of(values), (group.rank() + 1) % 3, writable_bytes_of(incoming),
                          (group.rank() + 2) % 3);
     }}};

TEST(GlooFailure, ARankKilledInAnyCollectiveIsNamedByTheOthers) {
  for (const auto& [kind, call_of_kind] : kKinds) {
    const auto& call = call_of_kind;   // a lambda cannot keep a structured binding
    for (const int victim : {0, 1}) {  // rank 0 holds the store
      const Marks marks;
      RankProcesses processes;
      start_gloo_processes(processes, 3,
                           [&](World& world) {
                             const auto group = world.group("all", {0, 1, 2});
                             std::vector<float> values(30000, 1);
                             call(*group, values);
                             marks.set(std::to_string(world.rank()));
                             for (;;) call(*group, values);
                             return std::string();
                           },
                           {60, 60});
      for (const char* rank : {"0", "1", "2"}) marks.wait_for(rank);
      usleep(50000);
      kill(processes.process(static_cast<std::size_t>(victim)), SIGKILL);
      const auto results = processes.results();
      for (const std::size_t rank : {0U, 1U, 2U}) {
        if (static_cast<int>(rank) == victim) continue;
        EXPECT_CONTAINS(results[rank], format("PeerError: rank {} (process ", victim)) << kind;
        EXPECT_CONTAINS(results[rank], kind);
      }
    }
  }
}

/// Expects that one of two ranks ends by itself when the other is stopped.
void expect_end_when_stopped(int victim) {
  RankProcesses processes;
  start_gloo_processes(processes, 2,
                       [=](World& world) {
                         const auto group = world.group("all", {0, 1});
                         group->barrier();
                         if (world.rank() == victim) raise(SIGSTOP);
                         group->barrier();
                         return std::string("completed");
                       },
                       {60, 0.5});
  int status = 0;
  waitpid(processes.process(1 - victim), &status, WUNTRACED);
  kill(processes.process(victim), SIGCONT);
  EXPECT_EQ(status, 0);
}

TEST(GlooFailure, AStoppedProcessEndsTheOthersAtTheDeadline) {
  expect_end_when_stopped(1);
}

TEST(GlooFailure, AStoppedProcessWithTheStoreEndsTheOthersAtTheDeadline) {
  expect_end_when_stopped(0);
}

TEST(GlooFailure, ARankKilledAtTheStartOrTheEndDoesNotBlockTheOthers) {
  for (const int victim : {0, 1}) {
    for (const bool at_start : {true, false}) {
      RankProcesses processes;
      start_gloo_processes(processes, 3,
                           [=](World& world) {
                             if (at_start && world.rank() == victim) kill(getpid(), SIGKILL);
                             const auto group = world.group("all", {0, 1, 2});
                             group->barrier();
                             if (world.rank() == victim) kill(getpid(), SIGKILL);
                             return std::string("done");
                           },
                           {at_start ? 3.0 : 60.0, 60});
      const auto results = processes.results();
      for (const std::size_t rank : {0U, 1U, 2U}) {
        if (static_cast<int>(rank) == victim) continue;
        if (at_start) {
          EXPECT_CONTAINS(results[rank], "PeerError: ");
          EXPECT_CONTAINS(results[rank], format("rank {} (", victim));
        } else {
          EXPECT_EQ(results[rank], "done");
        }
      }
    }
  }
}

TEST(GlooWorld, RefusesADifferentWorldSizeAndADuplicateRank) {
  const auto store = memory_store();
  const auto join = [&](int rank, int size, double seconds) {
    return result_of([&] {
      gloo_world(store->share(), options_of(rank, size, {seconds, 60}));
      return std::string("joined");
    });
  };
  EXPECT_CONTAINS(join(0, 3, 0.2), "for rank 1 (not connected), rank 2 (not connected)");
  EXPECT_CONTAINS(join(1, 2, 0.2), "rank 1 was started for 2 ranks, rank 0 for 3");
  EXPECT_CONTAINS(join(0, 3, 0.2), "rank 0 of this run exists already");
}

TEST(GlooWorld, OfManyMissingRanksTheFirstAreNamedAndTheOthersCounted) {
  const auto store = memory_store();
  const std::string result = result_of([&] {
    gloo_world(store->share(), options_of(3, 4096, {0.2, 60}));
    return std::string("joined");
  });
  EXPECT_CONTAINS(result, "no answer within 0.2 s: rank 3 waits for rank 0");
  const std::string of_first = result_of([&] {
    gloo_world(store->share(), options_of(0, 4096, {0.2, 60}));
    return std::string("joined");
  });
  EXPECT_CONTAINS(of_first, "for rank 1 (not connected), rank 2 (not connected), rank 3 (not connected), ");
  EXPECT_CONTAINS(of_first, "rank 8 (not connected) and 4,087 more");
}

TEST(GlooWorld, AnExceptionInOneRankEndsTheOthersWithItsReason) {
  const auto results = run_gloo_threads(4,
                                        [](World& world) -> std::string {
                                          const auto group = world.group("all", all_ranks(4));
                                          try {
                                            std::vector<float> values(5000);
                                            for (int i = 0; i < 100; ++i) {
                                              if (world.rank() == 2 && i == 50)
                                                throw Error("the disk is full");
                                              group->all_reduce(writable_bytes_of(values), DType::f32);
                                            }
                                          } catch (const Error& error) {
                                            world.abort(error.what());
                                            throw;
                                          }
                                          return "completed";
                                        },
                                        {60, 60});
  EXPECT_EQ(results[2], "Error: the disk is full");
  for (const std::size_t rank : {0U, 1U, 3U}) {
    EXPECT_CONTAINS(results[rank], "PeerError: rank 2: the disk is full");
  }
}

}  // namespace
}  // namespace stepforge::testing
