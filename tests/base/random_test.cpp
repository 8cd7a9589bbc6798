// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/random.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace stepforge::testing {
namespace {

using Words = std::array<uint32_t, 4>;

// The known-answer vectors of the Random123 library for philox4x32 with 10 rounds.
TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0'a4093822, 0x85a308d3'243f6a88, 0x03707344'13198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformNumbers, LieInTheHalfOpenUnitInterval) {
  EXPECT_EQ(uniform_float(0), 0.0F);
  EXPECT_LT(uniform_float(0xFFFFFFFF), 1.0F);
  EXPECT_EQ(uniform_float(0x80000000), 0.5F);
  EXPECT_EQ(uniform_double(0, 0), 0.0);
  EXPECT_LT(uniform_double(0xFFFFFFFF, 0xFFFFFFFF), 1.0);
  EXPECT_EQ(uniform_double(0x80000000, 0), 0.5);
}

TEST(StreamKey, DependsOnSeedAndPurpose) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const char* purpose : {"init:a", "init:b", "dropout", ""}) keys.insert(stream_key(seed, purpose));
  }
  EXPECT_EQ(keys.size(), 400U);
  EXPECT_EQ(stream_key(7, "dropout"), stream_key(7, "dropout"));
}

TEST(Permutation, IsABijectionForEverySizeAndKey) {
  EXPECT_TRUE(rc::check("every value exactly once", [] {
    const auto size = *rc::gen::inRange<uint64_t>(1, 5000);
    const Permutation permutation(size, *rc::gen::arbitrary<uint64_t>());
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t value = permutation(i);
      RC_ASSERT(value < size);
      RC_ASSERT(!seen[value]);
      seen[value] = true;
    }
  }));
}

TEST(Permutation, StaysInRangeForHugeSizes) {
  for (const uint64_t size : {uint64_t{1} << 33, (uint64_t{1} << 62) + 1, ~uint64_t{0}}) {
    const Permutation permutation(size, 3);
    std::set<uint64_t> values;
    for (uint64_t i = 0; i < 1000; ++i) {
      values.insert(permutation(i));
      values.insert(permutation(size - 1 - i));
    }
    EXPECT_EQ(values.size(), 2000U);
    EXPECT_LT(*values.rbegin(), size);
  }
}

TEST(Permutation, DifferentKeysGiveDifferentOrders) {
  const uint64_t size = 1000;
  const Permutation left(size, 1);
  const Permutation right(size, 2);
  int same = 0;
  int in_place = 0;
  for (uint64_t i = 0; i < size; ++i) {
    same += left(i) == right(i) ? 1 : 0;
    in_place += left(i) == i ? 1 : 0;
  }
  EXPECT_LT(same, 10);
  EXPECT_LT(in_place, 10);
}

}  // namespace
}  // namespace stepforge::testing
