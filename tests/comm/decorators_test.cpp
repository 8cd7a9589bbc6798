// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/comm/recording.h"
#include "tests/support/delayed_world.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(DelayedWorld, AppliesTheRuleToEachCallAndKeepsResults) {
  std::atomic<int> calls{0};
  std::atomic<uint64_t> bytes{0};
  auto worlds = thread_worlds(2);
  std::vector<std::thread> threads;
  std::vector<int32_t> sums(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto world = delayed_world(std::move(worlds[rank]), [&](const CollectiveCall& call) {
        ++calls;
        bytes += call.bytes;
        return Delay{.before = rank == 0 ? 0.002 : 0, .after = rank == 1 ? 0.002 : 0, .per_byte = 1e-6};
      });
      const auto group = world->group("all", {0, 1});
      const auto alone = world->group("alone", {static_cast<int>(rank)});
      std::vector<int32_t> values(3, static_cast<int32_t>(rank) + 1);
      for (int i = 0; i < 4; ++i) group->all_reduce(writable_bytes_of(values), DType::i32);
      alone->all_reduce(writable_bytes_of(values), DType::i32);
      group->barrier();
      sums[rank] = values[0];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, (std::vector<int32_t>{24, 24}));
  EXPECT_EQ(calls, 10);
  EXPECT_EQ(bytes, 2U * 4 * 12);
}

/// Records sleeps instead of sleeping, and how many threads slept at the same time.
class RecordedSleeps {
 public:
  Sleep sleep() {
    return [this](double seconds) {
      {
        const std::lock_guard lock(mutex_);
        seconds_.push_back(seconds);
        max_sleeping_ = std::max(max_sleeping_, ++sleeping_);
      }
      std::this_thread::yield();
      const std::lock_guard lock(mutex_);
      --sleeping_;
    };
  }
  std::multiset<double> seconds() const { return {seconds_.begin(), seconds_.end()}; }
  int max_sleeping() const { return max_sleeping_; }

 private:
  std::mutex mutex_;
  std::vector<double> seconds_;
  int sleeping_ = 0;
  int max_sleeping_ = 0;
};

TEST(DelayedWorld, SleepsBeforeAndAfterACallAndForItsBytes) {
  auto worlds = thread_worlds(2);
  RecordedSleeps sleeps;
  const auto call = [&](std::size_t rank) {
    const DelayRule rule = [](const CollectiveCall& call) {
      return call.kind == CollectiveKind::all_gather ? Delay{.before = 1, .after = 2, .per_byte = 0.25}
                                                     : Delay{};
    };
    const auto world =
        delayed_world(std::move(worlds[rank]), rule, rank == 0 ? sleeps.sleep() : Sleep([](double) {}));
    const auto group = world->group("all", {0, 1});
    std::vector<std::byte> whole(20);
    group->all_gather(std::vector<std::byte>(10), whole);
    group->barrier();
  };
  std::thread other([&] { call(1); });
  call(0);
  other.join();
  EXPECT_EQ(sleeps.seconds(), (std::multiset<double>{1, 2, 5}));
}

TEST(DelayedWorld, TransfersOverOneLinkDoNotOverlap) {
  auto worlds = thread_worlds(2);
  RecordedSleeps sleeps;
  const auto transfer = [&](std::size_t rank) {
    const DelayRule rule = [](const CollectiveCall&) { return Delay{.per_byte = 1}; };
    const auto world =
        delayed_world(std::move(worlds[rank]), rule, rank == 0 ? sleeps.sleep() : Sleep([](double) {}));
    const auto first = world->group("first", {0, 1});
    const auto second = world->group("second", {0, 1});
    const auto gather = [](Communicator& group) {
      std::vector<std::byte> whole(2);
      for (int i = 0; i < 100; ++i) group.all_gather(std::vector<std::byte>(1), whole);
    };
    std::thread second_thread([&] { gather(*second); });
    gather(*first);
    second_thread.join();
  };
  std::thread other([&] { transfer(1); });
  transfer(0);
  other.join();
  EXPECT_EQ(sleeps.seconds().count(2), 200U);
  EXPECT_EQ(sleeps.max_sleeping(), 1);
}

TEST(DelayedWorld, DelaysAndForwardsAllToAllAndPairedCalls) {
  auto worlds = thread_worlds(2);
  RecordedSleeps sleeps;
  std::vector<std::string> seen;
  const auto call = [&](std::size_t rank) {
    const auto world = delayed_world(
        std::move(worlds[rank]),
        [&, rank](const CollectiveCall& call) {
          if (rank == 0) seen.push_back(collective_text(call));
          return Delay{.per_byte = 1};
        },
        rank == 0 ? sleeps.sleep() : Sleep([](double) {}));
    const auto group = world->group("all", {0, 1});
    const int peer = 1 - static_cast<int>(rank);
    std::vector<std::byte> out(6, static_cast<std::byte>(rank));
    std::vector<std::byte> in(6);
    group->all_to_all(out, std::vector<std::size_t>{3, 3}, in, std::vector<std::size_t>{3, 3}, 9);
    EXPECT_EQ(in[0], std::byte{0});
    EXPECT_EQ(in[3], std::byte{1});
    group->send_receive(std::span(out).first(4), peer, std::span(in).first(4), peer);
    EXPECT_EQ(in[3], static_cast<std::byte>(peer));
    if (rank == 0) {
      group->send(std::span(out).first(5), peer);
      group->receive(std::span(in).first(2), peer);
    } else {
      group->receive(std::span(in).first(5), peer);
      group->send(std::span(out).first(2), peer);
    }
    EXPECT_EQ(in[1], static_cast<std::byte>(peer));
  };
  std::thread other([&] { call(1); });
  call(0);
  other.join();
  EXPECT_EQ(sleeps.seconds(), (std::multiset<double>{2, 5, 6, 8}));
  EXPECT_EQ(seen, (std::vector<std::string>{
                      "all_to_all for unit 9", "send_receive of 8 bytes to member 1 and from member 1",
                      "send of 5 bytes to member 1", "receive of 2 bytes from member 1"}));
}

TEST(DelayedWorld, LinkDelayIsLatencyAndTimePerByte) {
  const Delay delay = link_delay(0.5, 4)({});
  EXPECT_EQ(delay.before, 0.5);
  EXPECT_EQ(delay.after, 0);
  EXPECT_EQ(delay.per_byte, 0.25);
}

TEST(DelayedWorld, ForwardsAbort) {
  auto worlds = thread_worlds(1);
  const auto world = delayed_world(std::move(worlds[0]), [](const CollectiveCall&) { return Delay{}; });
  const auto group = world->group("alone", {0});
  world->abort("enough");
  EXPECT_THROW(group->barrier(), PeerError);
}

TEST(RecordingWorld, CountsCallsAndBytesByGroupAndKind) {
  RecordingWorld world(5, 16384);
  std::vector<int> column;
  for (int rank = 5; rank < 16384; rank += 8) column.push_back(rank);
  const auto shard = world.group("dp_shard", {0, 1, 2, 3, 4, 5, 6, 7});
  const auto replicate = world.group("dp_replicate", column);
  const auto alone = world.group("tp", {5});
  EXPECT_EQ(shard->rank(), 5);
  EXPECT_EQ(replicate->size(), 2048);
  std::vector<float> part(10);
  std::vector<float> whole(80);
  shard->all_gather(bytes_of(part), writable_bytes_of(whole));
  shard->all_gather(bytes_of(part), writable_bytes_of(whole));
  shard->reduce_scatter(bytes_of(whole), writable_bytes_of(part), DType::f32);
  replicate->all_reduce(writable_bytes_of(part), DType::f32);
  replicate->broadcast(writable_bytes_of(part), 2047);
  replicate->barrier();
  alone->all_reduce(writable_bytes_of(part), DType::f32);
  const std::vector<Traffic> expected = {{"dp_replicate", CollectiveKind::all_reduce, 1, 40},
                                         {"dp_replicate", CollectiveKind::broadcast, 1, 40},
                                         {"dp_replicate", CollectiveKind::barrier, 1, 0},
                                         {"dp_shard", CollectiveKind::all_gather, 2, 640},
                                         {"dp_shard", CollectiveKind::reduce_scatter, 1, 320}};
  EXPECT_EQ(world.traffic(), expected);
  world.reset_traffic();
  EXPECT_TRUE(world.traffic().empty());
}

TEST(RecordingWorld, UsesThisRanksValuesForAllRanks) {
  RecordingWorld world(1, 3);
  const auto group = world.group("all", {0, 1, 2});
  std::vector<int32_t> part = {7, 8};
  std::vector<int32_t> whole(6);
  group->all_gather(bytes_of(part), writable_bytes_of(whole));
  EXPECT_EQ(whole, (std::vector<int32_t>{7, 8, 7, 8, 7, 8}));
  whole = {1, 2, 3, 4, 5, 6};
  group->reduce_scatter(bytes_of(whole), writable_bytes_of(part), DType::i32);
  EXPECT_EQ(part, (std::vector<int32_t>{3, 4}));
  group->all_reduce(writable_bytes_of(whole), DType::i32);
  EXPECT_EQ(whole, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
}

TEST(RecordingWorld, CountsWhatAllToAllAndPairedCallsMoveOnThisRank) {
  RecordingWorld world(1, 3);
  const auto group = world.group("all", {0, 1, 2});
  const std::vector<std::byte> bytes = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}};
  std::vector<std::byte> incoming(6, std::byte{9});
  group->all_to_all(bytes, std::vector<std::size_t>{2, 0, 3}, incoming, std::vector<std::size_t>{4, 0, 2});
  EXPECT_EQ(incoming, (std::vector<std::byte>{std::byte{1}, std::byte{2}, std::byte{0}, std::byte{0},
                                              std::byte{3}, std::byte{4}}));
  group->send(bytes, 0);
  group->send(bytes, 2);
  group->receive(incoming, 0);
  EXPECT_EQ(incoming, std::vector<std::byte>(6));
  group->send_receive(bytes, 2, std::span(incoming).first(2), 0);
  EXPECT_EQ(incoming[1], std::byte{2});
  const std::vector<Traffic> expected = {{"all", CollectiveKind::all_to_all, 1, 5},
                                         {"all", CollectiveKind::send, 2, 10},
                                         {"all", CollectiveKind::receive, 1, 6},
                                         {"all", CollectiveKind::send_receive, 1, 7}};
  EXPECT_EQ(world.traffic(), expected);
  EXPECT_THROW(group->send(bytes, 1), Error);
  EXPECT_THROW(group->receive(incoming, 3), Error);
  EXPECT_THROW(group->send_receive(bytes, 1, incoming, 0), Error);
  EXPECT_THROW(group->all_to_all(bytes, std::vector<std::size_t>{5}, incoming, std::vector<std::size_t>{6}),
               Error);
  EXPECT_EQ(world.traffic(), expected);
  world.abort("enough");
  EXPECT_THROW(group->send(bytes, 0), PeerError);
}

TEST(RecordingWorld, ChecksArgumentsAndEndsOnAbort) {
  RecordingWorld world(1, 3);
  EXPECT_THROW(world.group("all", {0, 2}), Error);
  EXPECT_THROW(RecordingWorld(3, 3), Error);
  const auto group = world.group("all", {0, 1, 2});
  std::vector<std::byte> part(4);
  std::vector<std::byte> whole(11);
  EXPECT_THROW(group->all_gather(part, whole), Error);
  EXPECT_THROW(group->broadcast(part, 3), Error);
  EXPECT_THROW(group->all_reduce(part, DType::u8), Error);
  EXPECT_TRUE(world.traffic().empty());
  world.abort("enough");
  EXPECT_THROW(group->barrier(), PeerError);
}

}  // namespace
}  // namespace stepforge::testing
