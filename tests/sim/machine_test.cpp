// SPDX-License-Identifier: Apache-2.0
// Streams, events, memory and the race detector of the simulated devices.
#include "stepforge/sim/machine.h"

#include <atomic>
#include <functional>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/sim/block_cache.h"
#include "stepforge/sim/guard.h"
#include "tests/support/throws.h"

namespace stepforge::sim {
namespace {

using testing::message_of;

class SimMachine : public ::testing::Test {
 protected:
  SimMachine() { Machine::get().set_delays({.seed = 3, .most_microseconds = 200}); }
  void TearDown() override {
    Machine::get().synchronize_device(device_.index());
    Machine::get().set_delays({});
  }

  at::Tensor ones(int64_t size) const { return at::ones({size}, at::device(device_)); }
  c10::Stream new_stream() const { return guard_.getStreamFromGlobalPool(device_); }
  c10::Stream current() const { return guard_.getStream(device_); }
  /// `later` waits for what `earlier` has.
  void order(const c10::Stream& earlier, const c10::Stream& later) const {
    c10::Event event(kType);
    event.record(earlier);
    event.block(later);
  }
  void expect_race(const std::function<void()>& run) const {
    EXPECT_NE(message_of<Error>(run).find("race on a device"), std::string::npos);
    Machine::get().synchronize_device(device_.index());
  }

  const bool registered_ = (register_devices(), true);
  at::Device device_{kType, 2};
  c10::impl::VirtualGuardImpl guard_{kType};
  c10::DeviceGuard here_{device_};
};

TEST_F(SimMachine, AnEventOrdersAReadAfterAWrite) {
  const at::Tensor x = ones(8);
  const c10::Stream other = new_stream();
  order(current(), other);
  x.add_(1);
  expect_race([&] {
    const c10::StreamGuard on(other);
    static_cast<void>(x + 1);
  });
  order(current(), other);
  at::Tensor sum;
  {
    const c10::StreamGuard on(other);
    sum = x + 1;
  }
  order(other, current());
  EXPECT_EQ(sum.cpu().sum().item<float>(), 24.0F);
}

TEST_F(SimMachine, AnEventOrdersAWriteAfterARead) {
  const at::Tensor x = ones(8);
  const c10::Stream other = new_stream();
  order(current(), other);
  at::Tensor copy;
  {
    const c10::StreamGuard on(other);
    copy = x.clone();
  }
  expect_race([&] { x.zero_(); });
  order(other, current());
  EXPECT_NO_THROW(x.zero_());
}

TEST_F(SimMachine, AnEventCoversOnlyWhatWasEnqueuedBeforeIt) {
  const at::Tensor x = ones(8);
  const c10::Stream other = new_stream();
  c10::Event early(kType);
  early.record(current());
  x.add_(1);
  early.block(other);
  expect_race([&] {
    const c10::StreamGuard on(other);
    static_cast<void>(x.sum());
  });
}

TEST_F(SimMachine, PartsOfATensorThatDoNotOverlapNeedNoOrder) {
  const at::Tensor x = ones(8);
  const c10::Stream other = new_stream();
  order(current(), other);
  x.narrow(0, 0, 4).add_(1);
  {
    const c10::StreamGuard on(other);
    EXPECT_NO_THROW(x.narrow(0, 4, 4).add_(2));
    expect_race([&] { x.narrow(0, 3, 2).add_(2); });
  }
}

TEST_F(SimMachine, AMessageNamesBothOperationsAndTheMissingEvent) {
  const at::Tensor x = ones(8);
  const c10::Stream other = new_stream();
  order(current(), other);
  Machine::mark("update layers.0");
  x.add_(1);
  Machine::mark("gather_start layers.0");
  const std::string message = message_of<Error>([&] {
    const c10::StreamGuard on(other);
    static_cast<void>(x.clone());
  });
  Machine::mark("");
  EXPECT_NE(message.find("in gather_start layers.0 (stream"), std::string::npos) << message;
  EXPECT_NE(message.find("in update layers.0 (stream"), std::string::npos) << message;
  EXPECT_NE(message.find("must wait for an event that stream 2 records after"), std::string::npos) << message;
}

TEST_F(SimMachine, ABlockIsReusedAtOnceByItsStreamAndLaterByOthers) {
  constexpr int64_t kSize = 12345;  // of no other test, so that there are no free blocks
  const at::Tensor kept = ones(kSize);
  at::Tensor x = ones(kSize);
  const void* address = x.storage().data();
  x = at::Tensor();
  x = at::empty({kSize}, at::device(device_));
  EXPECT_EQ(x.storage().data(), address);

  const c10::Stream other = new_stream();
  order(current(), other);
  std::atomic<bool> may_go_on = false;
  {
    const c10::StreamGuard on(other);
    Machine::get().enqueue(current_stream(device_.index()), {"wait", {}, {}, [&] { may_go_on.wait(false); }});
    static_cast<void>(x.add_(1));
    guard_.recordDataPtrOnStream(x.storage().data_ptr(), other);
  }
  x = at::Tensor();  // the other stream has not finished
  const at::Tensor next = at::empty({kSize}, at::device(device_));
  EXPECT_NE(next.storage().data(), address);
  may_go_on = true;
  may_go_on.notify_all();
  Machine::get().synchronize_device(device_.index());
  EXPECT_EQ(at::empty({kSize}, at::device(device_)).storage().data(), address);
}

TEST_F(SimMachine, FreeingWhatAnotherStreamUsesIsARaceUnlessItIsRecorded) {
  const c10::Stream other = new_stream();
  const auto free_in_use = [&](bool record) {
    at::Tensor x = ones(64);
    order(current(), other);
    {
      const c10::StreamGuard on(other);
      static_cast<void>(x.add_(1));
      if (record) guard_.recordDataPtrOnStream(x.storage().data_ptr(), other);
    }
    x = at::Tensor();
    static_cast<void>(ones(8));
  };
  EXPECT_NO_THROW(free_in_use(true));
  expect_race([&] { free_in_use(false); });
}

TEST_F(SimMachine, TheHostMayNotTouchDeviceMemory) {
  const at::Tensor x = ones(8);
  report_host_accesses(true);
  static_cast<void>(*const_cast<const volatile float*>(static_cast<const float*>(x.storage().data())));
  report_host_accesses(false);
  EXPECT_NE(message_of<Error>([&] { static_cast<void>(x + 1); }).find("the host touched device memory"),
            std::string::npos);
}

TEST_F(SimMachine, TheHostMayNotTouchPinnedMemoryBeforeItHasWaited) {
  const at::Tensor x = ones(8);
  const at::Tensor pinned = at::zeros({8}, at::device(at::kCPU).pinned_memory(true));
  ASSERT_TRUE(pinned.is_pinned());
  const auto* values = static_cast<const volatile float*>(const_cast<const void*>(pinned.const_data_ptr()));
  const auto copy = [&] { at::Tensor(pinned).copy_(x, /*non_blocking=*/true); };
  copy();
  report_host_accesses(true);
  static_cast<void>(values[0]);
  report_host_accesses(false);
  EXPECT_NE(message_of<Error>([&] { static_cast<void>(x + 1); }).find("the host touched pinned memory"),
            std::string::npos);
  Machine::get().synchronize_device(device_.index());
  copy();
  Machine::get().synchronize_stream(current_stream(device_.index()));
  EXPECT_EQ(values[7], 1.0F);
}

TEST_F(SimMachine, ACopyFromPinnedMemoryMayBeReadButNotWrittenWhileItRuns) {
  const at::Tensor pinned = at::ones({8}, at::device(at::kCPU).pinned_memory(true));
  const at::Tensor x = pinned.to(device_, /*non_blocking=*/true);
  EXPECT_EQ(pinned.sum().item<float>(), 8.0F);
  report_host_accesses(true);
  pinned.zero_();
  report_host_accesses(false);
  EXPECT_NE(message_of<Error>([&] { static_cast<void>(x + 1); }).find("the host touched pinned memory"),
            std::string::npos);
}

TEST_F(SimMachine, FailedWorkIsThrownByLaterCalls) {
  const at::Tensor x = ones(4);
  Machine::get().synchronize_device(device_.index());
  const at::Tensor outside = at::full({1}, 9, at::device(device_).dtype(at::kLong));
  const c10::StreamGuard on(new_stream());
  order(guard_.getDefaultStream(device_), current());
  static_cast<void>(x.index_select(0, outside));
  EXPECT_NE(message_of<Error>([&] { static_cast<void>(x.sum().item<float>()); }).find("aten::index_select"),
            std::string::npos);
  Machine::get().synchronize_device(device_.index());
}

}  // namespace
}  // namespace stepforge::sim
