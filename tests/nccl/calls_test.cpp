// SPDX-License-Identifier: Apache-2.0
// When NCCL's communicators wait, and for what.
#include <chrono>
#include <thread>

#include "tests/nccl/nccl_ranks.h"

namespace stepforge::testing {
namespace {

using Floats = std::vector<float>;

/// Passes calls on, and counts those that need another rank.
class CountedControl : public Communicator {
 public:
  CountedControl(std::unique_ptr<Communicator> group, std::atomic<int>& calls)
      : group_(std::move(group)), calls_(calls) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override {
    ++calls_;
    group_->all_gather(part, whole, unit);
  }
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override {
    ++calls_;
    group_->reduce_scatter(whole, part, dtype, unit);
  }
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override {
    ++calls_;
    group_->all_reduce(values, dtype, unit);
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    ++calls_;
    group_->broadcast(bytes, root);
  }
  void barrier() override {
    ++calls_;
    group_->barrier();
  }
  void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                  std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                  int unit) override {
    ++calls_;
    group_->all_to_all(outgoing, outgoing_sizes, incoming, incoming_sizes, unit);
  }
  void send(std::span<const std::byte> bytes, int peer) override {
    ++calls_;
    group_->send(bytes, peer);
  }
  void receive(std::span<std::byte> bytes, int peer) override {
    ++calls_;
    group_->receive(bytes, peer);
  }
  void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                    int from) override {
    if (to != rank()) ++calls_;
    group_->send_receive(outgoing, to, incoming, from);
  }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  std::unique_ptr<Communicator> group_;
  std::atomic<int>& calls_;
};

/// A rank of a group "all" with a stream, which is the thread's current one.
struct Rank {
  int rank;
  CUstream_st& stream;
  Communicator& group;
  CallFailure& failure;
  std::atomic<int>& control_calls;

  void wait() const { stream.synchronize(); }
  /// Holds up the stream.
  void work(int milliseconds) const {
    stream.enqueue([=] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
  }
};

void run_ranks(int size, const std::function<void(const Rank&)>& body, double seconds = 60) {
  const auto results =
      run_threads(size,
                  [&](World& control) {
                    NcclWorld world(control, seconds);
                    CUstream_st stream;
                    const UseStream use(stream);
                    std::atomic<int> calls = 0;
                    const auto ranks = all_ranks(size);
                    const auto group = world.device_group(
                        std::make_unique<CountedControl>(control.group("all", ranks), calls), "all", ranks);
                    calls = 0;
                    body({control.rank(), stream, *group, world.failure(), calls});
                    stream.synchronize();
                    return std::string();
                  },
                  {60, 60});
  for (const std::string& result : results) EXPECT_EQ(result, "");
  expect_clean_fakes();
}

TEST(NcclCalls, ReturnBeforeTheirPeersCall) {
  const Marks marks;
  run_ranks(2, [&](const Rank& own) {
    const OnGpu<float> values({1.0F});
    const OnGpu<float> large(Floats(50000, 2.0F));
    if (own.rank == 1) marks.wait_for("rank 0 has enqueued");
    own.group.all_reduce(values.bytes(), DType::f32);
    own.group.all_reduce(large.bytes(), DType::f32);
    own.group.broadcast(values.bytes(), 1);
    if (own.rank == 0) marks.set("rank 0 has enqueued");
    own.wait();
    EXPECT_EQ(values.read(), Floats{2});
    EXPECT_EQ(large.read(), Floats(50000, 4.0F));
  });
}

TEST(NcclCalls, HaveTheOrderOfTheirStream) {
  run_ranks(3, [](const Rank& own) {
    const OnGpu<float> values(Floats(30000, -1.0F));
    Floats seen;
    for (int i = 0; i < 20; ++i) {
      const float start = static_cast<float>(i + own.rank);
      if (i % 5 == own.rank) own.work(5);
      own.stream.enqueue([&values, start] { std::fill_n(values.data(), 30000, start); });
      own.group.all_reduce(values.bytes(), DType::f32);
      own.stream.enqueue([&] { seen.push_back(values.data()[29999]); });
    }
    own.wait();
    ASSERT_EQ(seen.size(), 20U);
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<float>(3 * i + 3));
  });
}

TEST(NcclCalls, OfTwoStreamsHaveAnOrderPerCommunicatorOnly) {
  const Marks marks;
  const auto results = as_nccl().run(2, [&](World& world) {
    const auto stuck = world.group("stuck", {0, 1});
    const auto free = world.group("free", {0, 1});
    std::vector<int32_t> first = {1};
    std::vector<int32_t> second = {2};
    std::thread beside([&] {
      if (world.rank() == 1) marks.wait_for("the other has ended");
      stuck->all_reduce(writable_bytes_of(first), DType::i32);
    });
    free->all_reduce(writable_bytes_of(second), DType::i32);
    if (world.rank() == 0) marks.set("the other has ended");
    beside.join();
    return format("{} {}", first[0], second[0]);
  });
  EXPECT_EQ(results, (std::vector<std::string>(2, "2 4")));
}

TEST(NcclCalls, OnDeviceMemoryMakeNoCallOfTheControlGroup) {
  run_ranks(3, [](const Rank& own) {
    const OnGpu<float> values(Floats(9000, 1.0F));
    const OnGpu<float> part(Floats(3000));
    own.group.all_reduce(values.bytes(), DType::f32);
    own.group.reduce_scatter(values.bytes(), part.bytes(), DType::f32);
    own.group.all_gather(part.bytes(), values.bytes());
    own.group.broadcast(values.bytes(), 2);
    const std::vector<std::size_t> sizes(3, 12000);
    const OnGpu<float> other(Floats(9000));
    own.group.all_to_all(values.bytes(), sizes, other.bytes(), sizes);
    own.group.send_receive(values.bytes(), (own.rank + 1) % 3, other.bytes(), (own.rank + 2) % 3);
    EXPECT_EQ(own.control_calls, 0);
    own.wait();
    EXPECT_EQ(other.read(), Floats(9000, 9.0F));
  });
}

TEST(NcclCalls, OnHostMemoryAreForTheControlGroup) {
  run_ranks(2, [](const Rank& own) {
    const int before = FakeNccl::get().counts().groups;
    Floats values = {1, 2};
    own.group.all_reduce(writable_bytes_of(values), DType::f32);
    EXPECT_EQ(values, (Floats{2, 4}));
    Floats whole(4);
    own.group.all_gather(bytes_of(values), writable_bytes_of(whole));
    EXPECT_EQ(whole, (Floats{2, 4, 2, 4}));
    if (own.rank == 0) own.group.send(bytes_of(values), 1);
    if (own.rank == 1) own.group.receive(writable_bytes_of(whole).subspan(0, 8), 0);
    own.group.barrier();
    EXPECT_GE(own.control_calls, 4);
    EXPECT_EQ(FakeNccl::get().counts().groups, before);
  });
}

TEST(NcclCalls, WithOneBufferOnTheHostAreRefused) {
  run_ranks(1, [](const Rank& own) {
    const OnGpu<float> values({1.0F});
    Floats on_host(1);
    EXPECT_CONTAINS(
        message_of<Error>([&] { own.group.all_gather(values.bytes(), writable_bytes_of(on_host)); }),
        "one buffer in host memory");
  });
}

TEST(NcclCalls, ARankWithoutBytesTakesNoPart) {
  run_ranks(3, [](const Rank& own) {
    // Ranks 0 and 1 send each other one number; rank 2 has none, and no memory.
    const std::vector<std::size_t> none(3, 0);
    if (own.rank == 2) {
      own.group.all_to_all({}, none, {}, none);
    } else {
      std::vector<std::size_t> sizes(3, 0);
      sizes[static_cast<std::size_t>(1 - own.rank)] = 4;
      const OnGpu<float> sent({static_cast<float>(own.rank)});
      const OnGpu<float> got({9.0F});
      own.group.all_to_all(sent.bytes(), sizes, got.bytes(), sizes);
      own.wait();
      EXPECT_EQ(got.read(), Floats{static_cast<float>(1 - own.rank)});
    }
    own.group.all_gather({}, {});
    own.group.all_reduce({}, DType::f32);
    own.group.barrier();
  });
}

TEST(NcclCalls, ABarrierWaitsForWhatThisRankHasEnqueued) {
  run_ranks(2, [](const Rank& own) {
    const OnGpu<float> values({1.0F});
    own.work(30);
    own.group.all_reduce(values.bytes(), DType::f32);
    own.group.barrier();
    EXPECT_EQ(values.read(), Floats{2});
  });
}

TEST(NcclCalls, SmallSumsAreOneExchangeAndLargeOnesTwo) {
  run_ranks(2, [](const Rank& own) {
    for (const auto& [count, groups] : {std::pair{8192, 2}, std::pair{8193, 4}}) {  // of both ranks
      const OnGpu<float> values(Floats(static_cast<std::size_t>(count), 1.0F));
      own.group.barrier();
      const int before = FakeNccl::get().counts().groups;
      own.group.barrier();
      own.group.all_reduce(values.bytes(), DType::f32);
      own.group.barrier();
      EXPECT_EQ(FakeNccl::get().counts().groups - before, groups) << count;
      own.group.barrier();
      EXPECT_EQ(values.read(), Floats(static_cast<std::size_t>(count), 2.0F));
    }
  });
}

TEST(NcclCalls, CommunicatorsAreDestroyedNotAborted) {
  int destroyed = 0;
  int aborted = 0;
  run_threads(3, [&](World& control) {
    NcclWorld(control, 60).group("all", {0, 1, 2});
    return std::string();
  });
  destroyed = FakeNccl::get().counts().destroyed;
  aborted = FakeNccl::get().counts().aborted;
  EXPECT_EQ(destroyed, 3);
  EXPECT_EQ(aborted, 0);
  expect_clean_fakes();
}

}  // namespace
}  // namespace stepforge::testing
