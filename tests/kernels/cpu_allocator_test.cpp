// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cpu_allocator.h"

#include <cstdio>
#include <fstream>
#include <latch>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace stepforge::testing {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

at::Tensor bytes(int64_t count) {
  return at::ones({count}, at::kByte);  // written, so that its pages are resident
}

int64_t resident_bytes() {
  int64_t all = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class CpuAllocator : public ::testing::Test {
 protected:
  CpuAllocator() {
    install_cpu_allocator();
    trim(2);
  }

  static void trim(int times) {
    for (int i = 0; i < times * kTrimSteps; ++i) trim_cpu_memory();
  }
};

TEST_F(CpuAllocator, FreeMemoryIsReturnedAtOnceWhenAsked) {
  return_free_cpu_memory();
  const int64_t reserved = cpu_memory().reserved_bytes;
  const at::Tensor kept = bytes(3 * kMiB);
  {
    const std::vector<at::Tensor> teacher = {bytes(64 * kMiB), bytes(40 * kMiB)};
  }
  return_free_cpu_memory();
  EXPECT_LT(cpu_memory().reserved_bytes, reserved + 8 * kMiB);
  EXPECT_GE(cpu_memory().reserved_bytes, reserved + 3 * kMiB);
}

TEST_F(CpuAllocator, BlocksThatNoStepNeedsAreReturnedToTheSystem) {
  const int64_t reserved = cpu_memory().reserved_bytes;
  const int64_t resident = resident_bytes();
  {
    const std::vector<at::Tensor> validation = {bytes(64 * kMiB), bytes(40 * kMiB), bytes(kMiB)};
  }
  EXPECT_GE(cpu_memory().reserved_bytes, reserved + 105 * kMiB);
  EXPECT_GE(resident_bytes(), resident + 100 * kMiB);
  trim(2);
  EXPECT_EQ(cpu_memory().reserved_bytes, reserved);
  EXPECT_LE(resident_bytes(), resident + 4 * kMiB);
}

TEST_F(CpuAllocator, ASteadyStepTakesNothingFromTheSystem) {
  const auto step = [] {
    const at::Tensor outer = bytes(5 * kMiB);
    for (const int64_t size : {100L, 3 * kMiB, 5 * kMiB}) {
      const std::vector<at::Tensor> inner = {bytes(size), bytes(size)};
    }
  };
  step();
  const MemoryStats first = cpu_memory();
  for (int i = 0; i < 5 * kTrimSteps; ++i) {
    step();
    trim_cpu_memory();
  }
  EXPECT_EQ(cpu_memory().system_blocks, first.system_blocks);
  EXPECT_EQ(cpu_memory().reserved_bytes, first.reserved_bytes);
}

TEST_F(CpuAllocator, AFreeBlockServesSomewhatSmallerSizes) {
  {
    const at::Tensor largest = bytes(48 * kMiB);
  }
  const MemoryStats first = cpu_memory();
  for (const int64_t size : {47, 40, 33}) {
    const at::Tensor smaller = bytes(size * kMiB);
    EXPECT_EQ(cpu_memory().live_bytes, first.live_bytes + size * kMiB);
  }
  EXPECT_EQ(cpu_memory().system_blocks, first.system_blocks);
  {
    const at::Tensor much_smaller = bytes(20 * kMiB);
  }
  EXPECT_EQ(cpu_memory().system_blocks, first.system_blocks + 1);
}

TEST_F(CpuAllocator, EachRankIsChargedForItsOwnTensors) {
  const int64_t of_process = cpu_memory().live_bytes;
  std::latch allocated(2);
  std::latch measured(2);
  std::vector<MemoryStats> counts(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const ChargeMemory charge(make_rank_memory());
      at::Tensor own = bytes((rank + 1) * kMiB);
      allocated.arrive_and_wait();
      counts[static_cast<size_t>(rank)] = cpu_memory();
      measured.arrive_and_wait();
      // Another thread of the rank frees a tensor that this thread allocated.
      std::thread([own = std::move(own), memory = charged_memory()]() mutable {
        const ChargeMemory lane(memory);
        const at::Tensor more = bytes(kMiB);
        own.reset();
      }).join();
      EXPECT_EQ(cpu_memory().live_bytes, 0);
      EXPECT_EQ(cpu_memory().peak_bytes, (rank + 2) * kMiB);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(counts[static_cast<size_t>(rank)].live_bytes, (rank + 1) * kMiB);
    EXPECT_EQ(counts[static_cast<size_t>(rank)].peak_bytes, (rank + 1) * kMiB);
  }
  EXPECT_EQ(cpu_memory().live_bytes, of_process);
}

}  // namespace
}  // namespace stepforge::testing
