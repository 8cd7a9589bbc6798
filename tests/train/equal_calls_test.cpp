// SPDX-License-Identifier: Apache-2.0
// Ranks whose lists of calls differ are refused before the first step.
#include "stepforge/train/equal_calls.h"

#include <gtest/gtest.h>

#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// A program of two units that are gathered in this order over the shard group of `layout`.
StepProgram gathers(const RankLayout& layout, std::vector<int> units) {
  StepProgram program;
  program.rank = layout.id.rank;
  program.groups = layout.groups;
  program.units = {{.name = "embedding"}, {.name = "layers.0"}};
  for (const int unit : units)
    program.operations.push_back(make_operation(OpKind::gather_start, unit, layout.find(kShardGroup)));
  return program;
}

/// What each of two ranks throws; `units`: of the second one.
std::vector<std::string> refusals(const std::vector<int>& units) {
  return run_threads(2, [&](World& world) -> std::string {
    const RankLayout layout = rank_layout({}, {.dims = {.dp_shard = 2}}, {world.rank(), world.size()});
    const StepProgram program = gathers(layout, world.rank() == 0 ? std::vector<int>{0, 1} : units);
    const GroupCommunicators groups(world, layout, group_lanes(program));
    try {
      require_equal_calls(program, groups);
    } catch (const Error& refusal) {
      return refusal.what();
    }
    return "";
  });
}

TEST(EqualCalls, EqualListsPass) {
  EXPECT_EQ(refusals({0, 1}), (std::vector<std::string>{"", ""}));
}

TEST(EqualCalls, TheFirstCallThatDiffersIsNamedOnEveryRank) {
  for (const std::string& refusal : refusals({1, 0}))
    EXPECT_CONTAINS(refusal, "call 1 of group", "\"gather", "embedding\" on rank 0", "layers.0\" on rank 1");
  for (const std::string& refusal : refusals({0}))
    EXPECT_CONTAINS(refusal, "call 2 of group", "layers.0\" on rank 0", "none on rank 1");
}

}  // namespace
}  // namespace stepforge::testing
