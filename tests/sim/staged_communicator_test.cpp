// SPDX-License-Identifier: Apache-2.0
// Collectives on the memory of simulated devices, by an engine for host memory.
#include "stepforge/storage/staged_communicator.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "stepforge/comm/shared_memory.h"
#include "stepforge/sim/machine.h"
#include "stepforge/storage/tensor_parts.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// A rank of a group of `size`, each with a device of its own.
struct DeviceRank {
  std::shared_ptr<CallFailure> failure;
  std::unique_ptr<Communicator> ranks;
  at::TensorOptions options;
  int rank = 0;

  at::Tensor values(std::vector<float> values) const { return at::tensor(values).to(options.device()); }
  at::Tensor zeros(int64_t count) const { return at::zeros({count}, options); }
  void wait() const { wait_for_device(options.device()); }
  static void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
};

std::vector<float> on_host(const at::Tensor& tensor) {
  const at::Tensor copy = tensor.cpu();
  return {copy.const_data_ptr<float>(), copy.const_data_ptr<float>() + copy.numel()};
}

void run_ranks(int size, const std::function<void(const DeviceRank&)>& body) {
  sim::Machine::get().set_delays({.seed = 4, .most_microseconds = 300});
  const auto worlds = thread_worlds(size, {20, 20});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const ComputeDevice device = compute_device("sim", rank);
      std::unique_ptr<Communicator> engine = group_of_all(worlds[static_cast<size_t>(rank)].get(), "all");
      Communicator* const raw = engine.get();
      DeviceRank own;
      own.failure = std::make_shared<CallFailure>([raw](const std::string& reason) { raw->abort(reason); });
      own.ranks = staged(std::move(engine), device, own.failure);
      own.options = at::device(device.device).dtype(at::kFloat);
      own.rank = rank;
      body(own);
      own.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  sim::Machine::get().set_delays({});
}

using Values = std::vector<float>;

TEST(StagedCommunicator, GathersAndSumsDeviceMemory) {
  run_ranks(3, [](const DeviceRank& own) {
    const auto r = static_cast<float>(own.rank);
    const at::Tensor part = own.values({r, 10 + r});
    const at::Tensor whole = own.zeros(6);
    own.ranks->all_gather(bytes_of(part), bytes_of(whole));
    EXPECT_EQ(on_host(whole), (Values{0, 10, 1, 11, 2, 12}));
    const at::Tensor slice = own.zeros(2);
    own.ranks->reduce_scatter(bytes_of(whole), bytes_of(slice), DType::f32);
    EXPECT_EQ(on_host(slice), (Values{3 * r, 3 * (10 + r)}));
    own.ranks->all_reduce(bytes_of(slice), DType::f32);
    EXPECT_EQ(on_host(slice), (Values{9, 99}));
    const at::Tensor from_last = own.values({r});
    own.ranks->broadcast(bytes_of(from_last), 2);
    EXPECT_EQ(on_host(from_last), (Values{2}));
  });
}

TEST(StagedCommunicator, SendsDeviceMemory) {
  run_ranks(2, [](const DeviceRank& own) {
    const auto r = static_cast<float>(own.rank);
    const int peer = 1 - own.rank;
    const at::Tensor mine = own.values({r, r});
    const at::Tensor theirs = own.zeros(2);
    own.ranks->send_receive(bytes_of(mine), peer, bytes_of(theirs), peer);
    EXPECT_EQ(on_host(theirs), (Values{1 - r, 1 - r}));
    if (own.rank == 0) own.ranks->send(bytes_of(mine), peer);
    if (own.rank == 1) own.ranks->receive(bytes_of(mine), peer);
    EXPECT_EQ(on_host(mine), (Values{0, 0}));
    // One element for this rank, two for the other.
    const std::vector<std::size_t> sizes =
        own.rank == 0 ? std::vector<std::size_t>{4, 8} : std::vector<std::size_t>{8, 4};
    const at::Tensor arrived = own.zeros(3);
    own.ranks->all_to_all(bytes_of(own.values({r, r + 2, r + 4})), sizes, bytes_of(arrived), sizes);
    EXPECT_EQ(on_host(arrived), own.rank == 0 ? (Values{0, 1, 3}) : (Values{2, 4, 5}));
  });
}

TEST(StagedCommunicator, CallsOnHostMemoryComeAfterThoseThatAreEnqueued) {
  run_ranks(2, [](const DeviceRank& own) {
    const at::Tensor on_device = own.values({1});
    // The engine refuses calls that differ, and what is enqueued comes late on one rank and early on the other.
    if (own.rank == 0)
      sim::Machine::get().enqueue(
          0, {"pause", {}, {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }});
    own.ranks->all_reduce(bytes_of(on_device), DType::f32);
    if (own.rank == 1) own.wait_a_little();
    double number = 5;
    own.ranks->all_reduce(std::as_writable_bytes(std::span(&number, 1)), DType::f64);
    EXPECT_EQ(number, 10);
    own.ranks->barrier();
    EXPECT_EQ(on_host(on_device), (Values{2}));
  });
}

TEST(StagedCommunicator, ACallReturnsBeforeItsPartnerCalls) {
  std::atomic<bool> enqueued = false;
  run_ranks(2, [&](const DeviceRank& own) {
    const at::Tensor values = own.values({1});
    if (own.rank == 1) enqueued.wait(false);
    own.ranks->all_reduce(bytes_of(values), DType::f32);
    enqueued = true;
    enqueued.notify_all();
    EXPECT_EQ(on_host(values), (Values{2}));
  });
}

TEST(StagedCommunicator, AFailureIsThrownByTheNextCall) {
  run_ranks(2, [](const DeviceRank& own) {
    const at::Tensor values = own.values({1});
    if (own.rank == 1) return own.ranks->abort("rank 1 has had enough");
    own.ranks->all_reduce(bytes_of(values), DType::f32);
    own.wait();
    const std::string message =
        message_of<PeerError>([&] { own.ranks->all_reduce(bytes_of(values), DType::f32); });
    EXPECT_CONTAINS(message, "rank 1 has had enough");
    EXPECT_THROW(own.failure->rethrow(), PeerError);
  });
}

}  // namespace
}  // namespace stepforge::testing
