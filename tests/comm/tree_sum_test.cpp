// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/tree_sum.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

template <typename T>
std::vector<T> sum_of(const std::vector<std::vector<T>>& sources, DType dtype) {
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) pointers.push_back(std::as_bytes(std::span(source)).data());
  std::vector<T> output(sources[0].size());
  tree_sum(pointers, std::as_writable_bytes(std::span(output)).data(), output.size() * sizeof(T), dtype);
  return output;
}

float sum_of_numbers(const std::vector<float>& numbers) {
  std::vector<std::vector<float>> sources;
  for (const float number : numbers) sources.push_back({number});
  return sum_of(sources, DType::f32)[0];
}

/// Numbers whose sum depends on the order of additions.
std::vector<float> order_sensitive(std::size_t count) {
  const std::vector<float> numbers = {1e8F, 3.3F, -1e8F, 1.7e7F, 0.123F, -1.7e7F, 5e-3F, 7.77F, 2.5e6F};
  return {numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST(TreeSum, AddsInTheOrderOfABinaryTree) {
  const std::vector<float> x = order_sensitive(9);
  EXPECT_EQ(sum_of_numbers(order_sensitive(1)), x[0]);
  EXPECT_EQ(sum_of_numbers(order_sensitive(2)), x[0] + x[1]);
  EXPECT_EQ(sum_of_numbers(order_sensitive(3)), (x[0] + x[1]) + x[2]);
  EXPECT_EQ(sum_of_numbers(order_sensitive(4)), (x[0] + x[1]) + (x[2] + x[3]));
  EXPECT_EQ(sum_of_numbers(order_sensitive(5)), ((x[0] + x[1]) + (x[2] + x[3])) + x[4]);
  EXPECT_EQ(sum_of_numbers(order_sensitive(6)), ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5]));
  EXPECT_EQ(sum_of_numbers(order_sensitive(7)), ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + x[6]));
  const float eight = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  EXPECT_EQ(sum_of_numbers(order_sensitive(8)), eight);
  EXPECT_EQ(sum_of_numbers(order_sensitive(9)), eight + x[8]);
  float in_order = 0;
  for (const float number : x) in_order += number;
  EXPECT_NE(sum_of_numbers(x), in_order) << "the sum of these numbers does not depend on the order";
}

TEST(TreeSum, IsExactForIntegersOfAnyLength) {
  for (const std::size_t length : {1U, 7U, 511U, 512U, 513U, 3000U}) {
    std::vector<std::vector<int32_t>> sources(5, std::vector<int32_t>(length));
    for (std::size_t s = 0; s < 5; ++s) {
      for (std::size_t i = 0; i < length; ++i) sources[s][i] = static_cast<int32_t>((s + 1) * (i + 3));
    }
    const auto sum = sum_of(sources, DType::i32);
    for (std::size_t i = 0; i < length; ++i) ASSERT_EQ(sum[i], static_cast<int32_t>(15 * (i + 3)));
  }
}

TEST(TreeSum, IntegersWrapAround) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(sum_of<int64_t>({{kMax}, {1}}, DType::i64)[0], std::numeric_limits<int64_t>::min());
  EXPECT_EQ(sum_of<int32_t>({{std::numeric_limits<int32_t>::max()}, {1}}, DType::i32)[0],
            std::numeric_limits<int32_t>::min());
}

TEST(TreeSum, DoublesAreSummedInDoublePrecision) {
  EXPECT_EQ(sum_of<double>({{1.0}, {0x1p-50}}, DType::f64)[0], 1.0 + 0x1p-50);
}

TEST(TreeSum, RoundsBfloat16OnceAfterSummingInFp32) {
  constexpr uint16_t one = 0x3F80;
  constexpr uint16_t half_step = 0x3B80;  // 2^-8: half the distance from 1 to the next number
  EXPECT_EQ(sum_of<uint16_t>({{one}, {half_step}}, DType::bf16)[0], one) << "a tie goes to even";
  EXPECT_EQ(sum_of<uint16_t>({{0x3F81}, {half_step}}, DType::bf16)[0], 0x3F82) << "a tie goes to even";
  EXPECT_EQ(sum_of<uint16_t>({{one}, {half_step}, {half_step}}, DType::bf16)[0], 0x3F81) << "rounded twice";
  EXPECT_EQ(sum_of<uint16_t>({{0x7F7F}, {0x7F7F}}, DType::bf16)[0], 0x7F80) << "too large: infinity";
  EXPECT_EQ(sum_of<uint16_t>({{0x7F81}, {one}}, DType::bf16)[0] & 0x7FC0, 0x7FC0) << "NaN stays NaN";
  EXPECT_EQ(sum_of<uint16_t>({{0xFF80}, {one}}, DType::bf16)[0], 0xFF80) << "infinity stays";
}

/// The value of an fp16 number, from its definition.
double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(TreeSum, ASingleFp16SourceIsUnchanged) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const uint16_t sum = sum_of<uint16_t>({{half}}, DType::f16)[0];
    const bool is_nan = (bits & 0x7FFF) > 0x7C00;
    if (is_nan) {
      ASSERT_GT(sum & 0x7FFF, 0x7C00);
    } else {
      ASSERT_EQ(sum, half);
    }
  }
}

TEST(TreeSum, RoundsFp16ToTheNearestTiesToEven) {
  // a + b is exact in fp32, so the rounded sum is the fp16 number nearest to it.
  for (uint32_t i = 0; i < 40000; ++i) {
    const auto a = static_cast<uint16_t>(i * 2654435761U >> 17 & 0x77FF);
    const auto b = static_cast<uint16_t>((i * 40503U + 7) & 0xFFFF);
    if ((b & 0x7C00) == 0x7C00) continue;
    const double exact = static_cast<float>(half_value(a) + half_value(b));
    const uint16_t sum = sum_of<uint16_t>({{a}, {b}}, DType::f16)[0];
    if ((sum & 0x7FFF) == 0x7C00) {
      ASSERT_GE(std::abs(exact), 65520);
      continue;
    }
    const double error = std::abs(half_value(sum) - exact);
    for (const int step : {-1, 1}) {
      const auto other = static_cast<uint16_t>(sum + step);
      if (((other ^ sum) & 0x8000) != 0 || (other & 0x7C00) == 0x7C00) continue;
      const double other_error = std::abs(half_value(other) - exact);
      ASSERT_LE(error, other_error) << a << " + " << b;
      if (error == other_error) {
        ASSERT_EQ(sum % 2, 0);
      }
    }
  }
}

TEST(TreeSum, TheOutputMayBeAnyOfTheSources) {
  for (std::size_t output = 0; output < 5; ++output) {
    std::vector<std::vector<float>> sources(5, std::vector<float>(1000));
    for (std::size_t s = 0; s < 5; ++s) {
      for (std::size_t i = 0; i < 1000; ++i) sources[s][i] = order_sensitive(5)[(s + i) % 5];
    }
    const std::vector<float> expected = sum_of(sources, DType::f32);
    std::vector<const std::byte*> pointers;
    for (const auto& source : sources) pointers.push_back(std::as_bytes(std::span(source)).data());
    tree_sum(pointers, std::as_writable_bytes(std::span(sources[output])).data(), 4000, DType::f32);
    EXPECT_EQ(sources[output], expected);
  }
}

TEST(TreeSum, RefusesUnsupportedTypesAndPartialElements) {
  EXPECT_CONTAINS(message_of<Error>([] { check_sum(8, DType::u8); }), std::string(dtype_name(DType::u8)));
  EXPECT_THROW(check_sum(8, DType::boolean), Error);
  EXPECT_THROW(check_sum(8, DType::i16), Error);
  EXPECT_THROW(check_sum(6, DType::f32), Error);
  EXPECT_NO_THROW(check_sum(6, DType::bf16));
}

}  // namespace
}  // namespace stepforge::testing
