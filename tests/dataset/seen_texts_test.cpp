// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/seen_texts.h"

#include <string>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(SeenTexts, EachHashIsNewOnce) {
  SeenTexts seen;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 20000; ++i) EXPECT_EQ(seen.insert(hash128(std::to_string(i))), round == 0) << i;
  }
  EXPECT_EQ(seen.size(), 20000);
}

TEST(SeenTexts, HashesThatDifferInAnyHalfDiffer) {
  SeenTexts seen;
  for (const uint64_t high : {0, 1, 256}) {
    for (const uint64_t low : {0, 1, 256}) {
      EXPECT_TRUE(seen.insert({high, low})) << high << " " << low;
      EXPECT_FALSE(seen.insert({high, low})) << high << " " << low;
    }
  }
}

TEST(SeenTexts, TakeTwentyToThirtyBytesEach) {
  SeenTexts seen;
  for (int i = 0; i < 100000; ++i) {
    seen.insert(hash128(std::to_string(i)));
    if (seen.size() < 50000) continue;
    ASSERT_GE(seen.bytes(), 20 * seen.size());
    ASSERT_LE(seen.bytes(), 32 * seen.size());
  }
}

}  // namespace
}  // namespace stepforge::testing
