// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/step/check_rules.h"
#include "stepforge/step/happens_before.h"
#include "tests/step/good_programs.h"

namespace stepforge::testing {
namespace {

/// Programs of every kind of lane: shards, replicas, offload, stages.
std::vector<Programs> examples() {
  RankOptions offloaded = small_options();
  offloaded.plan.offload = true;
  RankOptions ordered = small_options();
  ordered.ordered = true;
  return {sharded(2, 2, 2, small_options()), sharded(2, 1, 2, offloaded), sharded(2, 1, 3, ordered),
          pipeline_1f1b(3)};
}

TEST(NeedsPass, WithoutAnyPolicyProgramsAreOrdered) {
  for (Programs programs : examples()) {
    for (StepProgram& program : programs) {
      for (Operation& operation : program.operations) operation.needs.clear();
      needs_pass(program);
    }
    // Without policies, gathers may run so far ahead that ranks take turns, but no two operations race.
    for (const StepProgram& program : programs) EXPECT_NO_THROW(check_one(program));
  }
}

TEST(NeedsPass, FindsNothingToAddToABuiltProgram) {
  for (Programs programs : examples()) {
    for (StepProgram& program : programs) {
      StepProgram again = program;
      needs_pass(again);
      for (std::size_t i = 0; i < program.operations.size(); ++i)
        EXPECT_EQ(again.operations[i].needs, program.operations[i].needs);
    }
  }
}

TEST(NeedsPass, AddsNoNeedThatOthersImply) {
  for (Programs programs : examples()) {
    for (StepProgram& program : programs) {
      for (Operation& operation : program.operations) operation.needs.clear();
      needs_pass(program);
      for (std::size_t i = 0; i < program.operations.size(); ++i) {
        for (const int needed : program.operations[i].needs) {
          StepProgram without = program;
          std::erase(without.operations[i].needs, needed);
          EXPECT_FALSE(HappensBefore(without)(static_cast<std::size_t>(needed), i))
              << i << " needs " << needed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
