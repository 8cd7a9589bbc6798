// SPDX-License-Identifier: Apache-2.0
// Work before, inside and after a scope is in order. What is not ordered would end these tests: the devices detect races.
#include "stepforge/train/stream_scope.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "stepforge/kernels/compute_device.h"
#include "stepforge/sim/machine.h"

namespace stepforge::testing {
namespace {

TEST(StreamScopeOrder, TheStreamAndTheOuterOneUseTheSameMemoryInTurn) {
  sim::Machine::get().set_delays({.seed = 8, .most_microseconds = 200});
  const ComputeDevice device = compute_device("sim:6", 0);
  const std::optional<c10::Stream> stream = device.backend->new_stream(device.device);
  const at::Tensor x = at::ones({8}, at::device(device.device));
  x.add_(1);
  {
    const StreamScope scope(stream);
    x.mul_(3);
  }
  x.add_(1);
  EXPECT_EQ(x.sum().item<float>(), 56.0F);
  sim::Machine::get().set_delays({});
}

TEST(StreamScopeOrder, WithoutAStreamNothingChanges) {
  const StreamScope scope(std::nullopt);
  EXPECT_EQ(at::ones({2}).sum().item<float>(), 2.0F);
}

}  // namespace
}  // namespace stepforge::testing
