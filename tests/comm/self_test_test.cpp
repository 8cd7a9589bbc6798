// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/self_test.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/comm/recording.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(SelfTest, PassesOverEveryNumberOfRanks) {
  for (const int size : {1, 2, 3, 5}) {
    const auto results = run_threads(size, [&](World& world) {
      std::vector<int> ranks;
      for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
      const auto group = world.group("all", ranks);
      test_collectives(*group, "all");
      test_messages(*group, "all");
      return std::string("passed");
    });
    for (const std::string& result : results) EXPECT_EQ(result, "passed");
  }
}

/// A simulated world moves no data, as a broken transport might.
// Finds what went wrong in pytorch#162338 (a reduce-scatter that returns other values).
TEST(SelfTest, NamesGroupCollectiveRankAndValuesOfAWrongResult) {
  RecordingWorld world(1, 3);
  const auto group = world.group("fsdp", {0, 1, 2});
  EXPECT_CONTAINS(
      message_of<Error>([&] { test_collectives(*group, "fsdp"); }),
      "the test of all_gather over group fsdp failed: rank 1 of 3 of the group got 2000 instead of 1000");
  EXPECT_CONTAINS(
      message_of<Error>([&] { test_messages(*group, "cp"); }),
      "the test of send_receive over group cp failed: rank 1 of 3 of the group got 2000 instead of 1000");
}

}  // namespace
}  // namespace stepforge::testing
