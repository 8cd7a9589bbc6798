// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/metered_communicator.h"

#include <array>
#include <thread>

#include <gtest/gtest.h>

#include "stepforge/comm/recording.h"
#include "tests/support/delayed_world.h"

namespace stepforge::testing {
namespace {

constexpr double kDelay = 0.002;

/// Rank 0 of a simulated group of 2, whose calls take at least kDelay.
std::unique_ptr<Communicator> slow_group(GroupMeter& meter, bool waits) {
  static const auto world = delayed_world(std::make_unique<RecordingWorld>(0, 2),
                                          [](const CollectiveCall&) { return Delay{.before = kDelay}; });
  return metered(world->group(waits ? "waits" : "beside", {0, 1}), meter, waits);
}

TEST(MeteredCommunicator, CountsTheWholeMessageOfEachCall) {
  GroupMeter meter;
  const auto group = slow_group(meter, true);
  std::array<std::byte, 16> whole{};
  const std::span<std::byte> all(whole);
  auto expect_bytes = [&meter, before = int64_t{0}](int64_t bytes) mutable {
    EXPECT_EQ(meter.bytes() - before, bytes);
    before = meter.bytes();
  };
  group->all_gather(all.first(8), all);
  expect_bytes(16);
  group->reduce_scatter(all, all.first(8), DType::f32);
  expect_bytes(16);
  group->all_reduce(all.first(4), DType::f32);
  expect_bytes(4);
  group->broadcast(all.first(12), 0);
  expect_bytes(12);
  std::array<std::byte, 16> other{};
  const std::array<std::size_t, 2> sizes{8, 8};
  group->all_to_all(all, sizes, other, sizes);
  expect_bytes(16);
  group->send(all.first(3), 1);
  expect_bytes(3);
  group->receive(all.first(3), 1);
  expect_bytes(0);  // it counts where it is sent
  group->send_receive(all.first(5), 1, std::span(other).first(7), 1);
  expect_bytes(5);
  group->barrier();
  expect_bytes(0);
}

TEST(MeteredCommunicator, AddsCallsToTheWaitingIfComputeWaitsForThem) {
  GroupMeter waited;
  slow_group(waited, true)->barrier();
  EXPECT_GE(waited.wait_seconds(), kDelay);
  EXPECT_EQ(waited.call_seconds(), waited.wait_seconds());
  GroupMeter beside;
  slow_group(beside, false)->barrier();
  EXPECT_EQ(beside.wait_seconds(), 0.0);
  EXPECT_GE(beside.call_seconds(), kDelay);
}

}  // namespace
}  // namespace stepforge::testing
