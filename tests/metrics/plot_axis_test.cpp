// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/metrics/plot.h"

namespace stepforge::testing {
namespace {

using Labels = std::vector<std::string>;

TEST(NiceAxis, RoundsItsEndsOutward) {
  const Axis axis = nice_axis(2.3, 9.1, 5, true);
  EXPECT_EQ(axis.low, 2);
  EXPECT_EQ(axis.high, 10);
  EXPECT_EQ(axis.labels, (Labels{"2", "4", "6", "8", "10"}));
}

TEST(NiceAxis, KeepsTheRangeWhenAskedTo) {
  const Axis axis = nice_axis(1, 3000, 7, false);
  EXPECT_EQ(axis.low, 1);
  EXPECT_EQ(axis.high, 3000);
  EXPECT_EQ(axis.labels, (Labels{"500", "1,000", "1,500", "2,000", "2,500", "3,000"}));
}

TEST(NiceAxis, LabelsShareUnitAndDecimals) {
  EXPECT_EQ(nice_axis(0, 50000, 5, true).labels, (Labels{"0", "10k", "20k", "30k", "40k", "50k"}));
  EXPECT_EQ(nice_axis(0, 3e6, 6, true).labels, (Labels{"0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M", "3.0M"}));
  EXPECT_EQ(nice_axis(0, 0.002, 4, true).labels, (Labels{"0", "0.5e-3", "1.0e-3", "1.5e-3", "2.0e-3"}));
  EXPECT_EQ(nice_axis(0, 8e-4, 5, true).labels, (Labels{"0", "2e-4", "4e-4", "6e-4", "8e-4"}));
  EXPECT_EQ(nice_axis(2.5, 2.7, 4, true).labels, (Labels{"2.50", "2.55", "2.60", "2.65", "2.70"}));
  EXPECT_EQ(nice_axis(-1, 1, 4, true).labels, (Labels{"-1.0", "-0.5", "0", "0.5", "1.0"}));
}

TEST(NiceAxis, HandlesEmptyAndNonFiniteRanges) {
  const Axis point = nice_axis(4, 4, 5, true);
  EXPECT_LT(point.low, 4);
  EXPECT_GT(point.high, 4);
  EXPECT_EQ(nice_axis(NAN, INFINITY, 5, true).labels.size(), 6U);
  EXPECT_EQ(nice_axis(INFINITY, -INFINITY, 5, true).high, 1);
  EXPECT_LT(nice_axis(0, 0, 5, true).low, 0);
  EXPECT_GE(nice_axis(-1.7e308, 1.7e308, 5, true).labels.size(), 3U);
  EXPECT_EQ(nice_axis(0, 2e20, 4, true).labels.back(), "2.0e20");
}

TEST(NiceAxis, NeverMakesManyTicks) {
  for (double exponent = -300; exponent < 300; exponent += 7.3) {
    const double high = std::pow(10, exponent);
    for (const double low : {0.0, high * 0.9, -high, high * (1 - 1e-9)}) {
      const Axis axis = nice_axis(low, high, 5, true);
      EXPECT_GE(axis.ticks.size(), 2U) << low << " " << high;
      EXPECT_LE(axis.ticks.size(), 9U) << low << " " << high;
      EXPECT_LE(axis.low, low + high * 1e-9);
      EXPECT_GE(axis.high, high * (1 - 1e-9));
    }
  }
}

TEST(ShortNumber, KeepsSignificantDigits) {
  EXPECT_EQ(short_number(1250000), "1.25M");
  EXPECT_EQ(short_number(6120.4), "6,120");
  EXPECT_EQ(short_number(123.456), "123.5");
  EXPECT_EQ(short_number(48.7), "48.70");
  EXPECT_EQ(short_number(3.1254), "3.125");
  EXPECT_EQ(short_number(0), "0.000");
  EXPECT_EQ(short_number(8e-4), "8e-4");
  EXPECT_EQ(short_number(1.24e-5), "1.2e-5");
  EXPECT_EQ(short_number(2e20), "2e20");
  EXPECT_EQ(short_number(NAN), "–");
}

TEST(NiceAxis, OfAHugeRangeIsCutWhereNumbersOverflow) {
  const Axis axis = nice_axis(0, 1.7e308, 5, true);
  EXPECT_EQ(axis.low, 0);
  EXPECT_GE(axis.high, 1e300);
  EXPECT_LE(axis.high, 2e300);
}

}  // namespace
}  // namespace stepforge::testing
