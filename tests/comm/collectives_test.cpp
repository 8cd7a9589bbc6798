// SPDX-License-Identifier: Apache-2.0
// Collectives over shared memory, over messages, and of a single rank.
#include <gtest/gtest.h>

#include "tests/comm/exchanges_suite.h"
#include "tests/support/memory_engine.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(OfThreads, Collectives,
                         ::testing::Combine(::testing::Values(as_threads()), ::testing::Range(1, 9)),
                         collectives_name);
INSTANTIATE_TEST_SUITE_P(OfProcesses, Collectives,
                         ::testing::Combine(::testing::Values(as_processes()), ::testing::Values(2, 4)),
                         collectives_name);
INSTANTIATE_TEST_SUITE_P(OfMessages, Collectives,
                         ::testing::Combine(::testing::Values(as_messages()), ::testing::Range(1, 9)),
                         collectives_name);
INSTANTIATE_TEST_SUITE_P(Of, Groups, ::testing::Values(as_threads(), as_processes(), as_messages()),
                         [](const auto& info) { return info.param.name; });

TEST(GroupRules, RanksMustAscendAndIncludeTheCaller) {
  const auto world = single_world();
  EXPECT_THROW(world->group("x", {}), Error);
  EXPECT_THROW(world->group("x", {0, 1}), Error);
  const auto results = run_threads(3, [](World& world) {
    EXPECT_THROW(world.group("x", {1, 0}), Error);
    EXPECT_THROW(world.group("x", {0, 0, 1}), Error);
    EXPECT_THROW(world.group("x", {-1, 0}), Error);
    EXPECT_THROW(world.group("x", {(world.rank() + 1) % 3}), Error);
    return std::string();
  });
  EXPECT_EQ(results[0], "");
}

TEST(SingleWorld, CollectivesOnlyCopy) {
  const auto world = single_world();
  const auto group = world->group("all", {0});
  std::vector<float> values = {1, 2, 3};
  std::vector<float> other(3);
  group->all_gather(bytes_of(values), writable_bytes_of(other));
  EXPECT_EQ(other, values);
  other.assign(3, 0);
  group->reduce_scatter(bytes_of(values), writable_bytes_of(other), DType::f32);
  EXPECT_EQ(other, values);
  group->all_reduce(writable_bytes_of(values), DType::f32);
  group->broadcast(writable_bytes_of(values), 0);
  group->barrier();
  EXPECT_EQ(values, other);
  other.assign(3, 0);
  group->all_to_all(bytes_of(values), std::vector<std::size_t>{12}, writable_bytes_of(other),
                    std::vector<std::size_t>{12});
  EXPECT_EQ(values, other);
  other.assign(3, 0);
  group->send_receive(bytes_of(values), 0, writable_bytes_of(other), 0);
  EXPECT_EQ(values, other);
  world->abort("enough");
  EXPECT_CONTAINS(message_of<PeerError>([&] { group->barrier(); }), "rank 0: enough");
}

TEST(SingleWorld, AWrongCallEndsTheGroup) {
  const auto world = single_world();
  const auto group = world->group("all", {0});
  std::vector<float> values = {1, 2, 3};
  EXPECT_CONTAINS(message_of<Error>([&] { group->broadcast(writable_bytes_of(values), 1); }),
                  "root 1 of a broadcast is outside a group of 1 ranks");
  EXPECT_CONTAINS(message_of<PeerError>([&] { group->barrier(); }), "rank 0: root 1 of a broadcast");
}

}  // namespace
}  // namespace stepforge::testing
