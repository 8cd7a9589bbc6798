// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/nccl/device_test.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge::cuda_nccl {

namespace {

constexpr int64_t kValues = 3;  // of each rank

/// Value i of a rank, different from those of all others.
int64_t value_of(int rank, int64_t i) {
  return (rank + 1) * int64_t{1000} + i;
}

/// Numbers on the device.
class DeviceValues {
 public:
  DeviceValues(const Gpu& gpu, const std::vector<int64_t>& values)
      : stream_(gpu.current_stream()), size_(values.size() * sizeof(int64_t)), memory_(gpu.allocate(size_)) {
    copy(memory_.get(), values.data(), cudaMemcpyHostToDevice);
  }

  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

  std::vector<int64_t> read() const {
    std::vector<int64_t> values(size_ / sizeof(int64_t));
    copy(values.data(), memory_.get(), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void copy(void* to, const void* from, cudaMemcpyKind kind) const {
    check_cuda(cudaMemcpyAsync(to, from, size_, kind, stream_), "copy test values");
    check_cuda(cudaStreamSynchronize(stream_), "wait for test values");
  }

  cudaStream_t stream_;
  std::size_t size_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace

void test_on_device(Communicator& group, std::string_view name, const Gpu& gpu) {
  const int64_t size = group.size();
  const auto expect = [&](std::string_view collective, int64_t result, int64_t expected) {
    if (result == expected) return;
    throw Error(format(
        "the test of {} between GPUs over group {} failed: rank {} of {} of the group got {} instead of {}; NCCL "
        "moves or sums wrong data: try comm.backend = auto",
        collective, name, group.rank(), size, result, expected));
  };
  std::vector<int64_t> own;
  for (int64_t i = 0; i < kValues; ++i) own.push_back(value_of(group.rank(), i));
  const DeviceValues part(gpu, own);
  const DeviceValues whole(gpu, std::vector<int64_t>(static_cast<std::size_t>(kValues * size)));
  // Every rank gives rank r its own values plus r.
  std::vector<int64_t> given;
  for (int64_t rank = 0; rank < size; ++rank)
    for (const int64_t value : own) given.push_back(value + rank);
  const DeviceValues addends(gpu, given);
  const DeviceValues sum(gpu, std::vector<int64_t>(kValues));
  group.all_gather(part.bytes(), whole.bytes());
  group.reduce_scatter(addends.bytes(), sum.bytes(), DType::i64);  // messages between all pairs
  group.broadcast(part.bytes(), 0);
  group.barrier();  // so that nothing below waits for a peer
  const std::vector<int64_t> gathered = whole.read();
  for (int rank = 0; rank < size; ++rank)
    for (int64_t i = 0; i < kValues; ++i)
      expect("all_gather", gathered[static_cast<std::size_t>(rank * kValues + i)], value_of(rank, i));
  const std::vector<int64_t> slice = sum.read();
  const std::vector<int64_t> of_root = part.read();
  for (int64_t i = 0; i < kValues; ++i) {
    expect("reduce_scatter", slice[static_cast<std::size_t>(i)],
           size * (size + 1) / 2 * 1000 + size * (i + group.rank()));
    expect("broadcast", of_root[static_cast<std::size_t>(i)], value_of(0, i));
  }
}

}  // namespace stepforge::cuda_nccl
