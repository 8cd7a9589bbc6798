// SPDX-License-Identifier: Apache-2.0
// The NCCL plug-in; its tests are skipped on machines without a GPU.
#include <bit>
#include <cstring>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "stepforge/comm/tree_sum.h"
#include "stepforge/engines/nccl/device_sum.h"
#include "stepforge/engines/nccl/plugin.h"
#include "tests/support/throws.h"

extern "C" std::unique_ptr<stepforge::World> stepforge_nccl_entry(const stepforge::NcclRequest& request);

namespace stepforge::testing {
namespace {

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
  }
};

/// Bytes in device memory.
class DeviceBytes {
 public:
  explicit DeviceBytes(const std::vector<std::byte>& bytes) : bytes_(bytes.size()) {
    EXPECT_EQ(cudaMalloc(&memory_, bytes.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceBytes() { cudaFree(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::span<std::byte> span() const { return {static_cast<std::byte*>(memory_), bytes_}; }
  std::vector<std::byte> read() const {
    std::vector<std::byte> bytes(bytes_);
    EXPECT_EQ(cudaMemcpy(bytes.data(), memory_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

/// Finite numbers of very different sizes, so that their sum depends on the order of additions.
std::vector<std::byte> order_sensitive(DType dtype, std::size_t count, uint32_t seed) {
  std::vector<std::byte> bytes(count * static_cast<std::size_t>(dtype_bytes(dtype)));
  for (std::size_t i = 0; i < count; ++i) {
    const uint32_t word = static_cast<uint32_t>(i * 2654435761U) ^ (seed * 40503U * 65537U);
    const float value = static_cast<float>(static_cast<int32_t>(word) >> 16) * (word % 3 == 0 ? 1e-3F : 1.0F);
    std::byte* target = bytes.data() + i * static_cast<std::size_t>(dtype_bytes(dtype));
    const double as_double = value;
    const uint64_t as_integer = word;
    const auto high_half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    const auto half = static_cast<uint16_t>((word & 0x83FF) | 0x3C00);  // 1 to 2
    switch (dtype) {
      case DType::f64:
        std::memcpy(target, &as_double, 8);
        break;
      case DType::f32:
        std::memcpy(target, &value, 4);
        break;
      case DType::bf16:
        std::memcpy(target, &high_half, 2);
        break;
      case DType::f16:
        std::memcpy(target, &half, 2);
        break;
      case DType::i64:
        std::memcpy(target, &as_integer, 8);
        break;
      default:
        std::memcpy(target, &word, 4);
    }
  }
  return bytes;
}

TEST_F(Nccl, TheDeviceSumHasTheBitsOfTreeSum) {
  constexpr std::size_t kCount = 5000;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32}) {
    for (int members = 1; members <= 9; ++members) {
      std::vector<std::vector<std::byte>> sources;
      std::vector<const std::byte*> pointers;
      std::vector<std::byte> staged;
      for (int member = 0; member < members; ++member) {
        sources.push_back(order_sensitive(dtype, kCount, static_cast<uint32_t>(member) + 1));
        staged.insert(staged.end(), sources.back().begin(), sources.back().end());
      }
      for (const auto& source : sources) pointers.push_back(source.data());
      const std::size_t bytes = sources[0].size();
      std::vector<std::byte> expected(bytes);
      tree_sum(pointers, expected.data(), bytes, dtype);
      const int own = members / 2;
      const DeviceBytes staging(staged);
      const DeviceBytes values(sources[static_cast<std::size_t>(own)]);
      ASSERT_EQ(device_tree_sum(staging.span().data(), bytes, values.span().data(), own, members,
                                values.span().data(), bytes, dtype, nullptr),
                cudaSuccess);
      EXPECT_EQ(values.read(), expected) << dtype_name(dtype) << " of " << members;
    }
  }
}

TEST_F(Nccl, AGroupOfOneCopiesDeviceMemoryAndRefusesHostMemory) {
  const auto control = single_world();
  const auto world = stepforge_nccl_entry({control.get(), 0, 60});
  const auto group = world->group("all", {0});
  const std::vector<std::byte> bytes = order_sensitive(DType::f32, 1000, 1);
  const DeviceBytes values(bytes);
  const DeviceBytes other(std::vector<std::byte>(bytes.size()));
  group->all_gather(values.span(), other.span());
  EXPECT_EQ(other.read(), bytes);
  const std::vector<std::size_t> sizes = {bytes.size()};
  const DeviceBytes moved(std::vector<std::byte>(bytes.size()));
  group->all_to_all(values.span(), sizes, moved.span(), sizes);
  EXPECT_EQ(moved.read(), bytes);
  const DeviceBytes returned(std::vector<std::byte>(bytes.size()));
  group->send_receive(values.span(), 0, returned.span(), 0);
  EXPECT_EQ(returned.read(), bytes);
  group->all_reduce(values.span(), DType::f32);
  group->broadcast(values.span(), 0);
  group->barrier();
  EXPECT_EQ(values.read(), bytes);
  const DeviceBytes sum(std::vector<std::byte>(bytes.size()));
  group->reduce_scatter(values.span(), sum.span(), DType::f32);
  EXPECT_EQ(sum.read(), bytes);
  std::vector<std::byte> host(bytes.size());
  EXPECT_CONTAINS(message_of<UsageError>([&] { group->all_reduce(host, DType::f32); }), "in the host's");
}

TEST(NcclPlugin, NamesAMissingDevice) {
  const auto control = single_world();
  const std::string message =
      message_of<UsageError>([&] { stepforge_nccl_entry({control.get(), 1000, 60}); });
  EXPECT_CONTAINS(message, "comm.backend = nccl");
}

}  // namespace
}  // namespace stepforge::testing
