// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/schema.h"

#include <gtest/gtest.h>

#include "stepforge/config/config.h"

namespace stepforge::testing {
namespace {

TEST(Schema, FindsFieldsByDottedName) {
  Config config;
  config.data.sources.resize(1);
  const FieldRef steps = find_field(config_schema(), &config, "training.steps");
  ASSERT_NE(steps.field, nullptr);
  EXPECT_EQ(std::get<int64_t*>(slot_of(steps)), &config.training.steps);
  const FieldRef factor = find_field(config_schema(), &config, "model.rope_scaling.factor");
  EXPECT_EQ(std::get<double*>(slot_of(factor)), &config.model.rope_scaling.factor);
  const FieldRef path = find_field(config_schema(), &config, "data.sources.0.path");
  EXPECT_EQ(std::get<std::string*>(slot_of(path)), &config.data.sources[0].path);
  const FieldRef source = find_field(config_schema(), &config, "data.sources.0");
  EXPECT_EQ(std::get<TableSlot>(slot_of(source)).object, &config.data.sources[0]);
}

TEST(Schema, LookupReportsTheUnknownPartOfAName) {
  Config config;
  const FieldRef ref = find_field(config_schema(), &config, "training.stepz.x");
  EXPECT_EQ(ref.field, nullptr);
  EXPECT_EQ(ref.known, "training");
  EXPECT_EQ(ref.unknown, "stepz");
}

TEST(Schema, LookupAppendsAtMostOneElementAndOnlyIfAllowed) {
  Config config;
  EXPECT_EQ(find_field(config_schema(), &config, "data.sources.0.path").field, nullptr);
  EXPECT_EQ(find_field(config_schema(), &config, "data.sources.1.path", true).field, nullptr);
  EXPECT_TRUE(config.data.sources.empty());
  EXPECT_NE(find_field(config_schema(), &config, "data.sources.0.path", true).field, nullptr);
  EXPECT_EQ(config.data.sources.size(), 1U);
  EXPECT_EQ(find_field(config_schema(), &config, "data.sources.99999999999999999999.path", true).field,
            nullptr);
}

TEST(Schema, FormatsRangesAsText) {
  EXPECT_EQ(range_text({}), "");
  EXPECT_EQ(range_text({.min = 1}), "at least 1");
  EXPECT_EQ(range_text({.min = 0, .max = 1e12}), "0 to 1e12");
  EXPECT_EQ(range_text({.min = 1, .max = 1 << 20, .special = -1}), "-1, or 1 to 2^20");
  EXPECT_EQ(range_text({.above = 0, .below = 1}), "above 0 and below 1");
  EXPECT_EQ(range_text({.max = 65537}), "at most 65537");
}

TEST(Schema, RangesIncludeTheirLimitsUnlessOpen) {
  const FieldRules closed{.min = 0, .max = 1, .special = -1};
  for (const double inside : {0.0, 0.5, 1.0, -1.0}) EXPECT_TRUE(in_range(closed, inside)) << inside;
  for (const double outside : {-0.1, 1.1, -2.0}) EXPECT_FALSE(in_range(closed, outside)) << outside;
  const FieldRules open{.above = 0, .below = 1};
  EXPECT_TRUE(in_range(open, 0.5));
  EXPECT_FALSE(in_range(open, 0.0));
  EXPECT_FALSE(in_range(open, 1.0));
}

TEST(Schema, NonFiniteNumbersAreNeverInRange) {
  EXPECT_FALSE(in_range({}, std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(in_range({}, std::numeric_limits<double>::quiet_NaN()));
}

}  // namespace
}  // namespace stepforge::testing
