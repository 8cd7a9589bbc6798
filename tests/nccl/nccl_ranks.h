// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, each with a fake GPU, and groups of them over the fake of NCCL.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/cuda/nccl/nccl_engine.h"
#include "tests/nccl/fake_cuda.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {

/// The current stream of a thread, while it exists.
class UseStream {
 public:
  explicit UseStream(CUstream_st& stream) : before_(std::exchange(current(), &stream)) {}
  ~UseStream() { current() = before_; }
  UseStream(const UseStream&) = delete;
  UseStream& operator=(const UseStream&) = delete;

  static cudaStream_t& current() {
    static thread_local cudaStream_t stream = nullptr;
    return stream;
  }

 private:
  cudaStream_t before_;
};

class FakeGpu : public cuda_nccl::Gpu {
 public:
  explicit FakeGpu(int device) : device_(device) {}

  int device() const override { return device_; }
  cudaStream_t current_stream() const override { return UseStream::current(); }
  /// Given back in the order of the stream, as by libtorch's allocator.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override {
    cudaStream_t stream = UseStream::current();
    return {FakeCuda::get().allocate(bytes),
            [stream](std::byte* memory) { stream->enqueue([memory] { FakeCuda::get().free(memory); }); }};
  }
  bool owns(const void* address) const override { return FakeCuda::get().owns(address); }

 private:
  int device_;
};

/// Values on a fake GPU. What a stream does with them must have ended before they are read or destroyed.
template <typename T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& values)
      : count_(values.size()), memory_(FakeCuda::get().allocate(count_ * sizeof(T))) {
    if (count_ > 0) std::memcpy(memory_, values.data(), count_ * sizeof(T));
  }
  ~OnGpu() { FakeCuda::get().free(memory_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  std::span<std::byte> bytes() const { return {memory_, count_ * sizeof(T)}; }
  T* data() const { return reinterpret_cast<T*>(memory_); }
  std::vector<T> read() const { return {data(), data() + count_}; }

 private:
  std::size_t count_;
  std::byte* memory_;
};

/// Calls with host memory, run on copies in memory of a fake GPU until they have ended.
class ThroughGpu : public Communicator {
 public:
  ThroughGpu(std::unique_ptr<Communicator> group, std::shared_ptr<CallFailure> failure,
             std::unique_ptr<CUstream_st> stream)
      : stream_(std::move(stream)), group_(std::move(group)), failure_(std::move(failure)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override {
    call(part, whole, [=, this](auto given, auto got) { group_->all_gather(given, got, unit); });
  }
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override {
    call(whole, part, [=, this](auto given, auto got) { group_->reduce_scatter(given, got, dtype, unit); });
  }
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override {
    call(values, values, [=, this](auto, auto got) { group_->all_reduce(got, dtype, unit); });
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    call(bytes, bytes, [=, this](auto, auto got) { group_->broadcast(got, root); });
  }
  void barrier() override { group_->barrier(); }
  void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                  std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                  int unit) override {
    call(outgoing, incoming, [=, this](auto given, auto got) {
      group_->all_to_all(given, outgoing_sizes, got, incoming_sizes, unit);
    });
  }
  void send(std::span<const std::byte> bytes, int peer) override {
    call(bytes, {}, [=, this](auto given, auto) { group_->send(given, peer); });
  }
  void receive(std::span<std::byte> bytes, int peer) override {
    call({}, bytes, [=, this](auto, auto got) { group_->receive(got, peer); });
  }
  void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                    int from) override {
    call(outgoing, incoming, [=, this](auto given, auto got) { group_->send_receive(given, to, got, from); });
  }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  using Bytes = std::span<std::byte>;

  static std::optional<std::size_t> place_in(std::span<const std::byte> part,
                                             std::span<const std::byte> whole) {
    if (part.empty() || part.data() < whole.data() || part.data() >= whole.data() + whole.size()) return {};
    return static_cast<std::size_t>(part.data() - whole.data());
  }

  /// One buffer may be a part of the other.
  template <typename Call>
  void call(std::span<const std::byte> outgoing, Bytes incoming, const Call& call) {
    const UseStream use(*stream_);
    const OnGpu<std::byte> given({outgoing.begin(), outgoing.end()});
    const OnGpu<std::byte> got({incoming.begin(), incoming.end()});
    Bytes of_given = given.bytes();
    Bytes of_got = got.bytes();
    if (const auto place = place_in(outgoing, incoming); place && outgoing.size() <= incoming.size()) {
      of_given = of_got.subspan(*place, outgoing.size());
    } else if (const auto inner = place_in(incoming, outgoing)) {
      of_got = of_given.subspan(*inner, incoming.size());
    }
    try {
      call(of_given, of_got);
    } catch (...) {
      stream_->synchronize();
      throw;
    }
    stream_->synchronize();
    failure_->rethrow();
    std::ranges::copy(of_got, incoming.begin());
  }

  std::unique_ptr<CUstream_st> stream_;  // first: NCCL's communicator uses it until it is destroyed
  std::unique_ptr<Communicator> group_;
  std::shared_ptr<CallFailure> failure_;
};

/// A rank's groups over NCCL; `control` outlives it.
class NcclWorld : public World {
 public:
  NcclWorld(World& control, double seconds)
      : control_(control),
        engine_(cuda_nccl::nccl_engine(std::make_shared<FakeGpu>(control.rank()), seconds)),
        failure_(std::make_shared<CallFailure>([this](const std::string& reason) { abort(reason); })) {}
  ~NcclWorld() override { failure_->close(); }

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  std::string transport() const override { return engine_->name(); }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    auto stream = std::make_unique<CUstream_st>();
    const UseStream use(*stream);
    auto group = device_group(control_.group(name, ranks), name, ranks);
    return std::make_unique<ThroughGpu>(std::move(group), failure_, std::move(stream));
  }
  void abort(const std::string& reason) override { control_.abort(reason); }

  /// For device memory, on the thread's current stream.
  std::unique_ptr<Communicator> device_group(std::unique_ptr<Communicator> control, const std::string& name,
                                             const std::vector<int>& ranks) {
    return engine_->group({std::move(control), name, ranks, failure_});
  }
  CallFailure& failure() { return *failure_; }

 private:
  World& control_;
  std::shared_ptr<DeviceEngine> engine_;
  std::shared_ptr<CallFailure> failure_;
};

/// Without faults, and everything is given back.
inline void expect_clean_fakes() {
  for (const std::string& fault : FakeCuda::get().faults()) ADD_FAILURE() << fault;
  EXPECT_EQ(FakeCuda::get().allocations(), 0);
  EXPECT_EQ(FakeCuda::get().events(), 0);
  EXPECT_EQ(FakeNccl::get().alive(), 0);
  FakeNccl::get().reset();
}

inline RankRunner as_nccl() {
  return {.name = "Nccl",
          .start =
              [](int size, const RankBody& body, CommDeadlines deadlines) {
                auto results = run_threads(
                    size,
                    [&](World& control) {
                      NcclWorld world(control, deadlines.train_seconds);
                      return body(world);
                    },
                    deadlines);
                expect_clean_fakes();
                return results;
              },
          .may_end_early = true};
}

}  // namespace stepforge::testing
