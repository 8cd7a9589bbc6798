// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/bind.h"

#include <functional>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/plan/step_plan.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// A program for the tiny model, which fits, after `change`; the error of binding it, or "".
std::string refusal(const std::function<void(StepProgram&)>& change) {
  TinyModel tiny(tiny_config());
  StepProgram program = plan_generation(DType::f32, tiny.spec, 8);
  change(program);
  return message_of<Error>([&] { check_binding(program, tiny.model, tiny.store); });
}

TEST(Binding, AcceptsTheProgramOfTheSameLayout) {
  TinyModel tiny(tiny_config());
  EXPECT_NO_THROW(check_binding(plan_generation(DType::f32, tiny.spec, 8), tiny.model, tiny.store));
}

TEST(Binding, RefusesEachDifferenceAndNamesBothValues) {
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.units.pop_back(); }),
                  "the number of units of the model is");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.blocks.pop_back(); }),
                  "the number of blocks of the model is");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.rank = 3; }), "is 3 in the program, but 0");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.groups.push_back({"loss", {0, 1}}); }),
                  "the number of groups of the model is 1 in the program, but 0");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.units[1].name = "other"; }),
                  "the name of unit other is other in the program, but ");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.units[1].shard_group = 0; }),
                  "the shard group of unit");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.units[1].replica_group = 0; }),
                  "the replica group of unit");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.units[1].offloaded = true; }),
                  "offloading of unit");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.units[1].resident = false; }),
                  "residency of unit");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.units[1].gathered_bytes += 4; }),
                  "the number of gathered bytes of unit");
  EXPECT_CONTAINS(refusal([](StepProgram& program) { program.units[1].reduced_bytes /= 2; }),
                  "the number of reduced bytes of unit");
}

}  // namespace
}  // namespace stepforge::testing
