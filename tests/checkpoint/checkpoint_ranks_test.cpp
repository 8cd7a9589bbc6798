// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/checkpoint_ranks.h"

#include <chrono>
#include <future>
#include <thread>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

CheckpointRanks ranks_of(World& world, double limit = 60) {
  return {world.group("checkpoint", all_ranks(world.size())), limit};
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(CheckpointRanks, RunReturnsTheResultsOfAllRanks) {
  const auto results = run_threads(3, [](World& world) {
    const CheckpointRanks ranks = ranks_of(world);
    std::string all;
    for (const std::string& text : ranks.run([&] { return std::string(world.rank() * 700, 'a'); })) {
      all += format("{} ", text.size());
    }
    return all;
  });
  EXPECT_EQ(results, std::vector<std::string>(3, "0 700 1400 "));
}

TEST(CheckpointRanks, AFailureIsThrownOnAllRanksAndNamesEachFailedRank) {
  const auto results = run_threads(4, [](World& world) -> std::string {
    const CheckpointRanks ranks = ranks_of(world);
    const auto odd_ones_fail = [&]() -> std::string {
      if (world.rank() % 2 == 1) throw UsageError("no room");
      return "";
    };
    const std::string message = message_of<Error>([&] { ranks.run(odd_ones_fail); });
    ranks.run([] { return ""; });  // the ranks still work
    return message;
  });
  EXPECT_EQ(results, std::vector<std::string>(4, "rank 1: no room; rank 3: no room"));
}

TEST(CheckpointRanks, OneRankRethrowsTheExceptionOfItsAction) {
  const CheckpointRanks alone;
  EXPECT_THROW(alone.run([]() -> std::string { throw UsageError("wrong"); }), UsageError);
  EXPECT_EQ(alone.run([] { return "fine"; }), std::vector<std::string>{"fine"});
}

TEST(CheckpointRanks, ASlowActionMayTakeLongerThanTheCollectiveDeadline) {
  const auto results = run_threads(2,
                                   [](World& world) -> std::string {
                                     const CheckpointRanks ranks = ranks_of(world);
                                     return ranks.run([&] {
                                       if (world.rank() == 1) sleep_for(4);
                                       return "done";
                                     })[1];
                                   },
                                   {60, 2});
  EXPECT_EQ(results, std::vector<std::string>(2, "done"));
}

TEST(CheckpointRanks, AnActionThatExceedsTheLimitFailsOnAllRanks) {
  const auto results = run_threads(2, [](World& world) -> std::string {
    const CheckpointRanks ranks = ranks_of(world, 0.3);
    return message_of<Error>([&] {
      ranks.run([rank = world.rank()] {
        if (rank == 1) sleep_for(1.5);
        return "";
      });
    });
  });
  EXPECT_EQ(results, std::vector<std::string>(2, "rank 1: not done within 0.3 s"));
}

/// An action that waits until end() is called.
class DeadDisk {
 public:
  std::function<std::string()> action() const {
    return [ended = ended_.get_future().share()] {
      ended.wait();
      return "";
    };
  }
  void end() const { ended_.set_value(); }

 private:
  mutable std::promise<void> ended_;
};

TEST(CheckpointRanks, ADeadDiskFailsOnAllRanksAtTheLimit) {
  const DeadDisk disk;
  const auto dead = disk.action();
  const auto results = run_threads(2, [&](World& world) -> std::string {
    const CheckpointRanks ranks = ranks_of(world, 0.3);
    const std::string message =
        message_of<Error>([&] { ranks.run(world.rank() == 1 ? dead : [] { return std::string(); }); });
    ranks.run([] { return ""; });  // the ranks still work
    return message;
  });
  EXPECT_EQ(results, std::vector<std::string>(2, "rank 1: not done within 0.3 s"));
  disk.end();
}

TEST(CheckpointRanks, ADeadDiskFailsOnASingleRankAtTheLimit) {
  const DeadDisk disk;
  const CheckpointRanks alone(nullptr, 0.3);
  EXPECT_EQ(message_of<Error>([&] { alone.run(disk.action()); }), "not done within 0.3 s");
  EXPECT_THROW(alone.run([]() -> std::string { throw UsageError("wrong"); }), UsageError);
  EXPECT_EQ(alone.run([] { return "fine"; }), std::vector<std::string>{"fine"});
  disk.end();
}

TEST(CheckpointRanks, ARankThatLeavesEndsTheWaitOfTheOthers) {
  const auto results = run_threads(3, [](World& world) -> std::string {
    const CheckpointRanks ranks = ranks_of(world);
    if (world.rank() == 2) return "left";
    ranks.run([] { return ""; });
    return "";
  });
  for (const int rank : {0, 1}) EXPECT_CONTAINS(results[static_cast<size_t>(rank)], "PeerError");
  EXPECT_CONTAINS(results[0], "rank 2");
}

}  // namespace
}  // namespace stepforge::testing
