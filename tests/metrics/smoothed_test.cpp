// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/smoothed.h"

#include <cmath>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(Smoothed, HasNoValueBeforeTheFirst) {
  EXPECT_TRUE(std::isnan(Smoothed().value()));
}

TEST(Smoothed, StartsAtTheFirstValueAndKeepsAConstant) {
  Smoothed average;
  for (int i = 0; i < 20; ++i) {
    average.add(4, 0.9);
    EXPECT_DOUBLE_EQ(average.value(), 4);
  }
}

TEST(Smoothed, WeighsValuesByPowersOfTheDecay) {
  Smoothed average;
  average.add(1, 0.5);
  average.add(3, 0.5);
  // Weights 0.25 and 0.5, together 0.75.
  EXPECT_DOUBLE_EQ(average.value(), (0.25 * 1 + 0.5 * 3) / 0.75);
}

TEST(Smoothed, IgnoresValuesThatAreNotFinite) {
  Smoothed average;
  average.add(2, 0.5);
  average.add(NAN, 0.5);
  average.add(INFINITY, 0.5);
  EXPECT_DOUBLE_EQ(average.value(), 2);
}

}  // namespace
}  // namespace stepforge::testing
