// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/diff.h"

#include <gtest/gtest.h>

#include "tests/config/config_testing.h"

namespace stepforge::testing {
namespace {

TEST(ConfigDiff, ListsEachDifferentFieldWithBothValues) {
  Config after;
  after.model.rope_scaling.factor = 32.0;
  after.data.sources = {{.path = "a.txt"}};
  after.optimizer.lr = 1e-3;
  after.run_dir = "elsewhere";
  const std::vector<FieldDifference> differences = diff(Config{}, after);
  ASSERT_EQ(differences.size(), 4U);
  EXPECT_EQ(differences[0].name, "run_dir");
  EXPECT_FALSE(differences[0].on_resume.reported);
  EXPECT_EQ(differences[1].name, "model.rope_scaling.factor");
  EXPECT_EQ(differences[1].before, "8.0");
  EXPECT_EQ(differences[1].after, "32.0");
  EXPECT_EQ(differences[1].on_resume.guard, Guard::model);
  EXPECT_EQ(differences[2].name, "data.sources");
  EXPECT_EQ(differences[2].on_resume.guard, Guard::data);
  EXPECT_EQ(differences[3].name, "optimizer.lr");
  EXPECT_TRUE(differences[3].on_resume.reported);
  EXPECT_EQ(differences[3].on_resume.guard, std::nullopt);
  EXPECT_TRUE(diff(after, after).empty());
}

}  // namespace
}  // namespace stepforge::testing
