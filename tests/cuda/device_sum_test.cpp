// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/device_sum.h"

#include <bit>
#include <cmath>
#include <utility>

#include "stepforge/comm/tree_sum.h"
#include "stepforge/cuda/half.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

/// Of very different sizes, so that their sum depends on the order of additions.
at::Tensor order_sensitive(int64_t count, at::ScalarType type, int seed) {
  const at::Tensor values = random_tensor({count}, seed);
  if (at::isIntegralType(type, /*includeBool=*/false)) return (values * 1e9).to(type);
  return (values * at::pow(10.0, random_tensor({count}, seed + 100))).to(type);
}

std::byte* bytes_at(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

constexpr std::pair<at::ScalarType, DType> kTypes[] = {{at::kDouble, DType::f64},    {at::kFloat, DType::f32},
                                                       {at::kBFloat16, DType::bf16}, {at::kHalf, DType::f16},
                                                       {at::kLong, DType::i64},      {at::kInt, DType::i32}};

TEST(CudaDeviceSum, HasTheBitsOfTreeSum) {
  for (const auto& [type, dtype] : kTypes) {
    for (int64_t members = 1; members <= 9; ++members) {
      constexpr int64_t kCount = 700;  // several blocks, the last of them not whole
      std::vector<at::Tensor> sources;
      std::vector<const std::byte*> pointers;
      for (int64_t m = 0; m < members; ++m)
        sources.push_back(order_sensitive(kCount, type, static_cast<int>(m)));
      for (const at::Tensor& source : sources) pointers.push_back(bytes_at(source));
      const at::Tensor expected = at::empty_like(sources[0]);
      const std::size_t bytes = expected.nbytes();
      tree_sum(pointers, bytes_at(expected), bytes, dtype);
      const int64_t own = members / 2;
      const auto actual = in_both_orders([&, type = type, dtype = dtype]() -> std::vector<at::Tensor> {
        const Guarded staging(at::stack(sources));
        const Guarded values(sources[static_cast<std::size_t>(own)]);
        staging.tensor()[own].fill_(99);  // the own source is not read there
        std::byte* const of_own = bytes_at(values.tensor());
        cuda::device_tree_sum(bytes_at(staging.tensor()), bytes, of_own, static_cast<int>(own),
                              static_cast<int>(members), of_own, bytes, dtype, nullptr);
        return {values.copy()};
      });
      EXPECT_TRUE(same_bits(actual[0], expected)) << dtype_name(dtype) << " of " << members;
    }
  }
}

TEST(CudaDeviceSum, MoreElementsThanThreadsAreAllSummed) {
  const at::Tensor ones = at::ones({cuda::kMaxBlocks * 256 + 300}, at::kInt);
  const at::Tensor sum = ones * 2;
  cuda::device_tree_sum(bytes_at(ones), ones.nbytes(), bytes_at(sum), 1, 2, bytes_at(sum), sum.nbytes(),
                        DType::i32, nullptr);
  EXPECT_TRUE(at::equal(sum, ones * 3));
}

TEST(CudaHalf, RoundsAsLibtorchDoes) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const __half half{static_cast<uint16_t>(i)};
    const float value = __half2float(half);
    const at::Half expected(static_cast<uint16_t>(i), at::Half::from_bits());
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(expected))) << i;
      EXPECT_TRUE(std::isnan(__half2float(__float2half_rn(value)))) << i;
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(static_cast<float>(expected))) << i;
    // The number itself, the middle to its neighbour, and what is next to the middle.
    const float middle = std::isinf(value) ? value : value + 0.5F * std::abs(value) * 0x1p-10F;
    for (const float near : {value, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, value * 2)})
      EXPECT_EQ(__float2half_rn(near).bits, at::Half(near).x) << i << ": " << near;
  }
}

}  // namespace
}  // namespace stepforge::testing
