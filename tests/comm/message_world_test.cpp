// SPDX-License-Identifier: Apache-2.0
// What worlds over messages have beside the rules of every engine.
#include "stepforge/comm/message_world.h"

#include <atomic>

#include <gtest/gtest.h>

#include "tests/support/memory_engine.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(MessageWorld, AFailureOfTheWorldIsToldToItsOwner) {
  const MemoryStore store;
  const auto board = std::make_shared<Switchboard>();
  std::vector<std::string> told(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      MessageWorldOptions options;
      options.run_id = "told";
      options.rank = rank;
      options.size = 2;
      std::atomic<bool> is_told = false;
      options.on_failure = [&](const std::string& reason) {
        told[static_cast<std::size_t>(rank)] = reason;
        is_told = true;
      };
      const auto world = message_world(options, store.share(), [&](const std::string& key, int member, int) {
        return std::make_unique<MemoryLinks>(board, key, member);
      });
      if (rank == 1) world->abort("the disk is full");
      while (!is_told) usleep(1000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told, (std::vector<std::string>{"rank 1: the disk is full", "rank 1: the disk is full"}));
}

TEST(MessageWorld, AGroupCannotBeMadeTwice) {
  const auto results = as_messages().run(2, [](World& world) {
    const auto group = world.group("all", {0, 1});
    world.group("all", {0, 1});
    return std::string("went through");
  });
  for (const std::string& result : results) EXPECT_CONTAINS(result, "exists already");
}

}  // namespace
}  // namespace stepforge::testing
