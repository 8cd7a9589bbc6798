// SPDX-License-Identifier: Apache-2.0
// Rules of worlds over messages in addition to those of every engine.
#include "stepforge/comm/message_world.h"

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
