// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/cuda_on_cpu.h"

#include <limits>

#include "stepforge/cuda/block_join.h"
#include "tests/cuda/on_cpu.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using cuda::SharedArray;

/// Each thread gets the number of its neighbour; kBarrier: as it should be.
template <bool kBarrier>
__global__ void pass_to_neighbour(float* out) {
  __shared__ SharedArray<float, 64> numbers;
  const int own = static_cast<int>(threadIdx.x);
  numbers[own] = static_cast<float>(own);
  if (kBarrier) __syncthreads();
  out[own] = numbers[(own + 1) % 64];
}

std::vector<float> neighbours(bool with_barrier, cuda_on_cpu::Order order) {
  const UseOrder use(order);
  std::vector<float> out(64, -1.0F);
  LAUNCH(with_barrier ? pass_to_neighbour<true> : pass_to_neighbour<false>, 1, 64, nullptr, out.data());
  return out;
}

TEST(CudaOnCpu, ARemovedBarrierIsSeenInBothOrders) {
  const auto right = neighbours(true, cuda_on_cpu::Order::ascending);
  EXPECT_EQ(right[5], 6.0F);
  EXPECT_EQ(right, neighbours(true, cuda_on_cpu::Order::descending));
  // Shared memory that no thread has written yet is NaN.
  EXPECT_TRUE(std::isnan(neighbours(false, cuda_on_cpu::Order::ascending)[5]));
  const auto down = neighbours(false, cuda_on_cpu::Order::descending);
  EXPECT_EQ(down[5], 6.0F);
  EXPECT_TRUE(std::isnan(down[63]));
}

__global__ void count_own(float* out) {
  __shared__ SharedArray<float, 1> total;
  if (blockIdx.x == 0) total[0] = 1.0F;
  out[blockIdx.x] = total[0];
}

TEST(CudaOnCpu, SharedMemoryIsNanAtTheStartOfEachBlock) {
  std::vector<float> out(2);
  LAUNCH(count_own, 2, 1, nullptr, out.data());
  EXPECT_EQ(out[0], 1.0F);
  EXPECT_TRUE(std::isnan(out[1]));
}

__global__ void two_barriers(int* reached) {
  if (threadIdx.x < 3) {  // NOLINT(bugprone-branch-clone): two places
    __syncthreads();
  } else {
    __syncthreads();
  }
  *reached += 1;
}

__global__ void early_end() {
  if (threadIdx.x == 2) return;
  __syncthreads();
}

__global__ void half_of_a_warp(float* out) {
  float value = 1.0F;
  if (threadIdx.x < 16) value = __shfl_xor_sync(cuda::kAllLanes, value, 1);
  __syncthreads();
  *out = value;
}

TEST(CudaOnCpu, ThreadsThatWaitAtDifferentPlacesEndTheLaunch) {
  int reached = 0;
  EXPECT_CONTAINS(message_of<std::logic_error>([&] { LAUNCH(two_barriers, 1, 8, nullptr, &reached); }),
                  "threads wait for each other at different places: thread 0 waits for its block in",
                  "; thread 3 waits");
  EXPECT_EQ(reached, 0);
  EXPECT_CONTAINS(message_of<std::logic_error>([] { LAUNCH(early_end, 1, 8, nullptr); }),
                  "thread 2 has ended");
  float out = 0.0F;
  EXPECT_CONTAINS(message_of<std::logic_error>([&] { LAUNCH(half_of_a_warp, 1, 32, nullptr, &out); }),
                  "thread 0 waits for its warp", "thread 16 waits for its block");
}

TEST(CudaOnCpu, TheNextLaunchWorksAfterAFailure) {
  EXPECT_THROW(LAUNCH(early_end, 1, 8, nullptr), std::logic_error);
  EXPECT_EQ(neighbours(true, cuda_on_cpu::Order::ascending)[62], 63.0F);
}

__global__ void write_shared(int index) {
  __shared__ SharedArray<float, 4> numbers;
  numbers[index] = 0.0F;
}

TEST(CudaOnCpu, AnIndexOutsideSharedMemoryIsRefused) {
  LAUNCH(write_shared, 1, 1, nullptr, 3);
  EXPECT_THROW(LAUNCH(write_shared, 1, 1, nullptr, 4), std::logic_error);
  EXPECT_THROW(LAUNCH(write_shared, 1, 1, nullptr, -1), std::logic_error);
}

/// kBarrier: as it should be. Otherwise one warp may write the second number before another has read the first.
template <bool kBarrier>
__global__ void two_numbers(float* out) {
  __shared__ SharedArray<float, 1> number;
  float sum = 0.0F;
  for (int turn = 1; turn <= 2; ++turn) {
    if (threadIdx.x == 0) number[0] = static_cast<float>(turn);
    __syncthreads();
    sum += __shfl_xor_sync(cuda::kAllLanes, number[0], 1);
    if (kBarrier) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

TEST(CudaOnCpu, AWarpMayBeAheadOfAnother) {
  std::vector<float> out(64);
  LAUNCH(two_numbers<true>, 1, 64, nullptr, out.data());
  EXPECT_EQ(out[63], 3.0F);
  LAUNCH(two_numbers<false>, 1, 64, nullptr, out.data());
  EXPECT_EQ(out[0], 3.0F);
  EXPECT_NE(out[63], 3.0F);
}

__global__ void load_four(const float* from, float* to) {
  float values[4];
  cuda::load(from, values);
  cuda::store(values, to);
}

TEST(CudaOnCpu, AnAddressThatIsNotAlignedIsRefused) {
  alignas(16) float numbers[8] = {};
  LAUNCH(load_four, 1, 1, nullptr, numbers, numbers + 4);
  EXPECT_THROW(LAUNCH(load_four, 1, 1, nullptr, numbers + 1, numbers + 4), std::logic_error);
  EXPECT_THROW(LAUNCH(load_four, 1, 1, nullptr, numbers, numbers + 2), std::logic_error);
}

TEST(CudaOnCpu, GridsAreThoseOfCuda) {
  EXPECT_THROW(LAUNCH(write_shared, 0, 1, nullptr, 0), std::logic_error);
  EXPECT_THROW(LAUNCH(write_shared, 1, 0, nullptr, 0), std::logic_error);
  EXPECT_THROW(LAUNCH(write_shared, 1, 1025, nullptr, 0), std::logic_error);
}

__global__ void shuffles(double* out) {
  const int own = static_cast<int>(threadIdx.x);
  const double swapped = __shfl_xor_sync(cuda::kAllLanes, 1.0 * own, 1);
  const double turned = __shfl_xor_sync(cuda::kAllLanes, swapped, 2);
  const float across = __shfl_xor_sync(cuda::kAllLanes, static_cast<float>(own), 16);
  __syncwarp();
  out[own] = 100.0 * turned + across;
}

TEST(CudaOnCpu, ShufflesStayInTheirWarp) {
  for (const auto order : {cuda_on_cpu::Order::ascending, cuda_on_cpu::Order::descending}) {
    const UseOrder use(order);
    std::vector<double> out(64);
    LAUNCH(shuffles, 1, 64, nullptr, out.data());
    EXPECT_EQ(out[0], 100.0 * 3 + 16);
    EXPECT_EQ(out[30], 100.0 * 29 + 14);
    EXPECT_EQ(out[33], 100.0 * 34 + 49);
  }
  double out = 0.0;
  EXPECT_THROW(LAUNCH(shuffles, 1, 33, nullptr, &out), std::logic_error);
}

__global__ void list_threads(int* count, int* order) {
  order[(*count)++] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

TEST(CudaOnCpu, ThreadsRunInTheOrderThatWasAsked) {
  for (const bool ascending : {true, false}) {
    const UseOrder use(ascending ? cuda_on_cpu::Order::ascending : cuda_on_cpu::Order::descending);
    int count = 0;
    std::vector<int> order(12, -1);
    LAUNCH(list_threads, 3, 4, nullptr, &count, order.data());
    EXPECT_EQ(count, 12);
    for (int i = 0; i < 12; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], ascending ? i : 11 - i);
  }
}

TEST(CudaOnCpu, Bf16RoundsAsLibtorchDoes) {
  const at::Tensor values = random_tensor({4096}, 1) * 1e3;
  values[0].fill_(std::numeric_limits<float>::infinity());
  values[1].fill_(1.00390625);  // a tie: to even
  const at::Tensor expected = values.to(at::kBFloat16);
  const auto* bits = static_cast<const uint16_t*>(expected.const_data_ptr());
  for (int64_t i = 0; i < values.numel(); ++i)
    EXPECT_EQ(__float2bfloat16_rn(values.const_data_ptr<float>()[i]).bits, bits[i]);
  EXPECT_TRUE(std::isnan(__bfloat162float(__float2bfloat16_rn(std::nanf("")))));
}

}  // namespace
}  // namespace stepforge::testing
