#include "metrics/throughput.h"

#include <chrono>

#include <gtest/gtest.h>

namespace stepforge {
namespace {

using std::chrono::seconds;

const ThroughputMeter::Clock::time_point start{};

TEST(ThroughputMeter, DividesTokensByTheTimeOfTheWindow) {
  ThroughputMeter meter(start);
  meter.add_step(1000, 0.5);
  meter.add_step(1000, 0.5);
  const ThroughputWindow window = meter.take(start + seconds(4));
  EXPECT_EQ(window.tokens, 2000);
  EXPECT_EQ(window.tokens_per_second(), 500);
  EXPECT_EQ(window.seconds_per_step(), 2);
  EXPECT_EQ(window.data_percent(), 25);
}

TEST(ThroughputMeter, LeavesPausesOut) {
  ThroughputMeter meter(start);
  meter.add_step(1000, 0);
  meter.pause(start + seconds(2));
  meter.resume(start + seconds(12));
  EXPECT_EQ(meter.take(start + seconds(14)).seconds, 4);
}

TEST(ThroughputMeter, CountsAPauseOverAWindowBorderInNeitherWindow) {
  ThroughputMeter meter(start);
  meter.pause(start + seconds(3));
  EXPECT_EQ(meter.take(start + seconds(5)).seconds, 3);
  meter.resume(start + seconds(10));
  EXPECT_EQ(meter.take(start + seconds(11)).seconds, 1);
}

TEST(ThroughputMeter, BeginsEachWindowAtZero) {
  ThroughputMeter meter(start);
  meter.add_step(1000, 1);
  meter.take(start + seconds(1));
  const ThroughputWindow window = meter.take(start + seconds(1));
  EXPECT_EQ(window.tokens, 0);
  EXPECT_EQ(window.tokens_per_second(), 0);
  EXPECT_EQ(window.seconds_per_step(), 0);
  EXPECT_EQ(window.data_percent(), 0);
}

}  // namespace
}  // namespace stepforge
