// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/random_fill.h"

#include <algorithm>
#include <bit>

#include "stepforge/base/error.h"
#include "stepforge/base/random.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

using Kind = Initializer::Kind;

std::vector<float> fill(int64_t first, int64_t count, const Initializer& init, uint64_t key) {
  std::vector<float> values(static_cast<size_t>(count));
  fill_initial(values.data(), first, count, init, key);
  return values;
}

TEST(FillInitial, AnySubRangeHasTheSameValues) {
  for (const Kind kind : {Kind::normal, Kind::truncated_normal}) {
    const Initializer init = {.kind = kind, .std = 0.02, .cutoff = 1.5};
    const std::vector<float> whole = fill(0, 70000, init, 5);
    for (const int64_t first : {0, 1, 2, 3, 4, 4097, 65531}) {
      for (const int64_t count : {0, 1, 3, 4, 4000}) {
        const std::vector<float> part = fill(first, count, init, 5);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first << " " << count;
      }
    }
  }
}

TEST(FillInitial, EachValueIsThatOfItsOwnDraw) {
  for (const Kind kind : {Kind::normal, Kind::truncated_normal}) {
    const Initializer init = {.kind = kind, .std = 1.0, .cutoff = 0.5};
    for (const int64_t first : {int64_t{0}, int64_t{1} << 34}) {
      // So many that some words are nearly 0 or 2^32. A radius is at most 6.8: sqrt(-2 log 2^-33).
      const int64_t count = kind == Kind::normal ? 1 << 19 : 20000;
      const std::vector<float> values = fill(first, count, init, 5);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_NEAR(values[static_cast<size_t>(i)], initial_value_reference(first + i, init, 5), 7e-6)
            << first + i;
      }
    }
  }
}

TEST(FillInitial, ASeedGivesTheSameBitsOnEveryProcessor) {
  // Recorded on an Intel Xeon with AVX-512.
  const std::vector<float> values = fill(0, 1 << 20, {.kind = Kind::normal, .std = 0.02}, 5);
  uint64_t hash = 0;
  for (const float value : values) hash = mix_bits(hash ^ std::bit_cast<uint32_t>(value));
  EXPECT_EQ(hash, 7931110812283279310U);
}

TEST(FillInitial, NormalHasTheRequestedMomentsAndDependsOnTheKey) {
  const Initializer init = {.kind = Kind::normal, .std = 2.0};
  const std::vector<float> values = fill(0, 200000, init, 6);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double z = values[i] / 2.0;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    if (i > 0) neighbours += z * values[i - 1] / 2.0;
  }
  const double n = 200000;
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 / std::sqrt(n));
  EXPECT_NE(fill(0, 4, init, 6), fill(0, 4, init, 7));
}

TEST(FillInitial, TruncatedNormalStaysWithinItsCutoffAndKeepsTheValuesInside) {
  const Initializer truncated = {.kind = Kind::truncated_normal, .std = 0.5, .cutoff = 1.0};
  const std::vector<float> values = fill(0, 100000, truncated, 8);
  const std::vector<float> normal = fill(0, 100000, {.kind = Kind::normal, .std = 0.5}, 8);
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(std::abs(values[i]), 0.5F);
    if (std::abs(normal[i]) <= 0.5F) {
      ASSERT_EQ(values[i], normal[i]);
    }
    squares += values[i] * values[i];
  }
  // Variance of a normal cut at one standard deviation: 1 - 2 phi(1) / (2 Phi(1) - 1) = 0.2911.
  EXPECT_NEAR(squares / 100000 / 0.25, 0.2911, 0.006);
}

TEST(FillInitial, ZerosAndOnes) {
  EXPECT_EQ(fill(3, 2, {.kind = Kind::zeros}, 9), (std::vector<float>{0, 0}));
  EXPECT_EQ(fill(3, 2, {.kind = Kind::ones}, 9), (std::vector<float>{1, 1}));
}

TEST(FillInitial, RefusesInvalidArguments) {
  EXPECT_THROW(fill(-1, 2, {.kind = Kind::normal, .std = 1}, 1), Error);
  EXPECT_THROW(fill(0, 2, {.kind = Kind::normal, .std = -1}, 1), Error);
  EXPECT_THROW(fill(0, 2, {.kind = Kind::truncated_normal, .std = 1, .cutoff = 0}, 1), Error);
}

}  // namespace
}  // namespace stepforge::testing
