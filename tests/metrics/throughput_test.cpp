// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/throughput.h"

#include <chrono>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

using std::chrono::seconds;

const ThroughputMeter::Clock::time_point start{};

TEST(ThroughputMeter, DividesTokensAndFlopsByTheTimeOfTheWindow) {
  ThroughputMeter meter;
  meter.begin_step(start);
  meter.end_step(1000, 3e12, 0.5, start + seconds(1));
  meter.begin_step(start + seconds(1));
  meter.end_step(1000, 3e12, 0.5, start + seconds(4));
  const ThroughputWindow window = meter.take();
  EXPECT_EQ(window.tokens, 2000);
  EXPECT_EQ(window.tokens_per_second(), 500);
  EXPECT_DOUBLE_EQ(window.tflops(), 1.5);
  EXPECT_EQ(window.seconds_per_step(), 2);
  EXPECT_EQ(window.data_percent(), 25);
}

TEST(ThroughputMeter, DoesNotCountTimeBetweenSteps) {
  ThroughputMeter meter;
  meter.begin_step(start);
  meter.end_step(1000, 0, 0, start + seconds(2));
  meter.begin_step(start + seconds(12));
  meter.end_step(1000, 0, 0, start + seconds(14));
  EXPECT_EQ(meter.take().seconds, 4);
}

TEST(ThroughputMeter, BeginsEachWindowAtZero) {
  ThroughputMeter meter;
  meter.begin_step(start);
  meter.end_step(1000, 1e12, 1, start + seconds(1));
  meter.take();
  const ThroughputWindow window = meter.take();
  EXPECT_EQ(window.tokens, 0);
  EXPECT_EQ(window.tokens_per_second(), 0);
  EXPECT_EQ(window.tflops(), 0);
  EXPECT_EQ(window.seconds_per_step(), 0);
  EXPECT_EQ(window.data_percent(), 0);
}

}  // namespace
}  // namespace stepforge::testing
