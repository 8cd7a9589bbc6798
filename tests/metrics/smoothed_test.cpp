#include "stepforge/metrics/smoothed.h"

#include <cmath>

#include <gtest/gtest.h>

namespace stepforge {
namespace {

TEST(Smoothed, HasNoValueBeforeTheFirst) {
  EXPECT_TRUE(std::isnan(Smoothed().value()));
}

TEST(Smoothed, StartsAtTheFirstValueAndKeepsAConstant) {
  Smoothed average(0.9);
  for (int i = 0; i < 20; ++i) {
    average.add(4);
    EXPECT_DOUBLE_EQ(average.value(), 4);
  }
}

TEST(Smoothed, WeighsValuesByPowersOfTheDecay) {
  Smoothed average(0.5);
  average.add(1);
  average.add(3);
  // Weights 0.25 and 0.5, together 0.75.
  EXPECT_DOUBLE_EQ(average.value(), (0.25 * 1 + 0.5 * 3) / 0.75);
}

TEST(Smoothed, PassesOverValuesThatAreNotFinite) {
  Smoothed average(0.5);
  average.add(2);
  average.add(NAN);
  average.add(INFINITY);
  EXPECT_DOUBLE_EQ(average.value(), 2);
}

TEST(Smoothed, ContinuesExactlyFromItsState) {
  Smoothed whole;
  Smoothed before;
  for (int i = 0; i < 7; ++i) {
    whole.add(std::sin(i));
    before.add(std::sin(i));
  }
  Smoothed after;
  after.restore(before.state());
  for (int i = 7; i < 20; ++i) {
    whole.add(std::sin(i));
    after.add(std::sin(i));
    EXPECT_EQ(whole.value(), after.value());
  }
}

}  // namespace
}  // namespace stepforge
