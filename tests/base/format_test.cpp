// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"

#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(Format, TakesBooleansIntegersFloatsAndStrings) {
  const std::string name = "loss";
  EXPECT_EQ(format("{} {} {:.2f} {} {}", name, -3, 2.5F, true, "end"), "loss -3 2.50 true end");
}

TEST(Format, KeepsTheFull64BitRange) {
  EXPECT_EQ(format("{} {}", std::numeric_limits<uint64_t>::max(), std::numeric_limits<int64_t>::min()),
            "18446744073709551615 -9223372036854775808");
}

TEST(Format, RefusesABadPattern) {
  EXPECT_THROW(format("{"), std::invalid_argument);
  EXPECT_THROW(format("{} {}", 1), std::invalid_argument);
  EXPECT_THROW(format("{:d}", "text"), std::invalid_argument);
}

TEST(Format, ThousandsAreSeparated) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1000), "1,000");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
  EXPECT_EQ(with_thousands(-123), "-123");
}

TEST(Format, BytesUseTheLargestBinaryUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(int64_t{3} << 29), "1.5 GiB");
}

TEST(Format, BytesRoundUpIntoTheNextUnit) {
  EXPECT_EQ(human_bytes((int64_t{1} << 20) - 1), "1.0 MiB");
}

TEST(Format, CountsHaveThreeSignificantDigits) {
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(12000), "12k");
  EXPECT_EQ(human_count(1'235'814'400), "1.24B");
  EXPECT_EQ(human_count(999'600), "1M");
}

TEST(Format, DurationsNeverShowSixtySecondsOrMinutes) {
  EXPECT_EQ(human_duration(12.34), "12.3s");
  EXPECT_EQ(human_duration(59.97), "1m 00s");
  EXPECT_EQ(human_duration(187), "3m 07s");
  EXPECT_EQ(human_duration(3599.7), "1h 00m");
  EXPECT_EQ(human_duration(3720), "1h 02m");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(Format, ShapesAndLists) {
  EXPECT_EQ(shape_text({4, 128}), "[4, 128]");
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
}

TEST(DidYouMean, SuggestsOnlyLikelyTypos) {
  const std::vector<std::string> fields = {"steps", "seq_len", "global_batch_size"};
  EXPECT_EQ(did_you_mean("stpes", fields), "steps");
  EXPECT_EQ(did_you_mean("seqlen", fields), "seq_len");
  EXPECT_EQ(did_you_mean("optimizer", fields), "");
}

}  // namespace
}  // namespace stepforge::testing
