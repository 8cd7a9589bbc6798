// SPDX-License-Identifier: Apache-2.0
// Rules of worlds over messages in addition to those of every engine.
#include "stepforge/comm/message_world.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/memory_engine.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Connect = std::function<void(int member)>;

/// Two ranks that create the world's group; `connect` runs before a member is connected. The results of `body`.
std::vector<std::string> connected_by(const Connect& connect, const RankBody& body) {
  const MemoryStore store;
  const auto board = std::make_shared<Switchboard>();
  return run_rank_threads(2, [&](int rank) {
    MessageWorldOptions options;
    options.run_id = "connect";
    options.rank = rank;
    options.size = 2;
    options.deadlines = {.init_seconds = 60, .train_seconds = 60};
    const auto world = message_world(options, store.share(), [&](const std::string& key, int member, int) {
      connect(member);
      return std::make_unique<MemoryLinks>(board, key, member);
    });
    return body(*world);
  });
}

TEST(MessageWorld, AFailureOfTheWorldCallsOnFailure) {
  const MemoryStore store;
  const auto board = std::make_shared<Switchboard>();
  std::vector<std::string> reasons(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      MessageWorldOptions options;
      options.run_id = "failure";
      options.rank = rank;
      options.size = 2;
      std::atomic<bool> has_failed = false;
      options.on_failure = [&](const std::string& reason) {
        reasons[static_cast<std::size_t>(rank)] = reason;
        has_failed = true;
      };
      const auto world = message_world(options, store.share(), [&](const std::string& key, int member, int) {
        return std::make_unique<MemoryLinks>(board, key, member);
      });
      if (rank == 1) world->abort("the disk is full");
      while (!has_failed) usleep(1000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reasons, (std::vector<std::string>{"rank 1: the disk is full", "rank 1: the disk is full"}));
}

TEST(MessageWorld, NoMemberHasAGroupBeforeAllAreConnected) {
  std::atomic<int> connected = 0;
  const auto slow = [&](int member) {
    if (member == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ++connected;
  };
  const auto results = connected_by(slow, [&](World& world) {
    const auto group = world.group("all", {0, 1});
    return std::to_string(connected);
  });
  EXPECT_EQ(results, (std::vector<std::string>{"2", "2"}));
}

TEST(MessageWorld, AMemberThatCannotConnectFailsTheGroupOfAllAtOnce) {
  const auto broken = [](int member) {
    if (member == 1) throw Error("no route to host");
  };
  const auto results = connected_by(broken, [](World& world) {
    return result_of([&] {
      world.group("all", {0, 1});
      return std::string("went through");
    });
  });
  for (const std::string& result : results) {
    EXPECT_TRUE(result.starts_with("PeerError: ")) << result;
    EXPECT_CONTAINS(result, "rank 1 in ");
    EXPECT_CONTAINS(result, "no route to host");
  }
}

/// How many times as long as a message takes the slowest rank waits in the second of two calls, which all begin together.
int64_t trips(int size, std::size_t staging_bytes, const std::function<void(Communicator&)>& call) {
  const MemoryStore store;
  const auto board = std::make_shared<Switchboard>();
  const auto results = run_rank_threads(size, [&](int rank) {
    MessageWorldOptions options;
    options.run_id = "trips";
    options.rank = rank;
    options.size = size;
    options.staging_bytes = staging_bytes;
    const auto clock = std::make_shared<int64_t>(0);
    const auto world = message_world(options, store.share(), [&](const std::string& key, int member, int) {
      return std::make_unique<MemoryLinks>(board, key, member, clock);
    });
    const auto group = world->group("all", all_ranks(size));
    call(*group);
    constexpr int64_t kLater = 1000;  // nothing of the first call is on its way any more
    *clock = kLater;
    call(*group);
    return std::to_string(*clock - kLater);
  });
  int64_t most = 0;
  for (const std::string& result : results) most = std::max<int64_t>(most, std::stoll(result));
  return most;
}

TEST(MessageWorld, ACallTakesNoMoreTripsBetweenHostsThanItHasRoundsOfMessages) {
  constexpr std::size_t kRoomy = 1 << 20;
  constexpr std::size_t kTight = 8 << 10;
  const auto all_reduce = [](std::size_t floats) {
    return [floats](Communicator& group) {
      std::vector<float> values(floats, 1);
      group.all_reduce(writable_bytes_of(values), DType::f32);
    };
  };
  const auto all_gather = [](Communicator& group) {
    std::vector<float> part(3000, 1);
    std::vector<float> whole(part.size() * static_cast<std::size_t>(group.size()));
    group.all_gather(bytes_of(part), writable_bytes_of(whole));
  };
  const auto reduce_scatter = [](Communicator& group) {
    std::vector<float> part(3000, 1);
    std::vector<float> whole(part.size() * static_cast<std::size_t>(group.size()));
    group.reduce_scatter(bytes_of(whole), writable_bytes_of(part), DType::f32);
  };
  const auto broadcast = [](Communicator& group) {
    std::vector<float> values(3000, 1);
    group.broadcast(writable_bytes_of(values), 0);
  };
  const auto all_to_all = [](Communicator& group) {
    const auto size = static_cast<std::size_t>(group.size());
    const std::vector<float> outgoing(3000 * size, 1);
    std::vector<float> incoming(outgoing.size());
    const std::vector<std::size_t> sizes(size, 3000 * sizeof(float));
    group.all_to_all(bytes_of(outgoing), sizes, writable_bytes_of(incoming), sizes);
  };
  for (const int size : {2, 3}) {
    SCOPED_TRACE(size);
    EXPECT_EQ(trips(size, kRoomy, all_reduce(100)), 1);  // with the headers
    EXPECT_EQ(trips(size, kRoomy, all_gather), 3);       // headers, data, confirmations
    EXPECT_EQ(trips(size, kRoomy, reduce_scatter), 3);
    EXPECT_EQ(trips(size, kRoomy, all_reduce(3000)), 4);  // summands, then sums
    EXPECT_EQ(trips(size, kRoomy, broadcast), 4);         // parts, then all of them
    EXPECT_EQ(trips(size, kRoomy, all_to_all), 4);        // sizes, then data
    EXPECT_LT(trips(size, kTight, reduce_scatter), 12);   // six rounds or more
  }
}

TEST(MessageWorld, AGroupCannotBeCreatedTwice) {
  const auto results = as_messages().run(2, [](World& world) {
    const auto group = world.group("all", {0, 1});
    world.group("all", {0, 1});
    return std::string("went through");
  });
  for (const std::string& result : results) EXPECT_CONTAINS(result, "exists already");
}

}  // namespace
}  // namespace stepforge::testing
