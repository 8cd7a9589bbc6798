// SPDX-License-Identifier: Apache-2.0
// State of blocks that the tallies of a step change: faults planted in such programs, all of which the checker finds.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

constexpr int kStateUnit = 4;

/// The first layer has state, such as the correction of a router over five experts.
ModelSpec model_with_state() {
  ModelSpec model = small_model();
  model.units.push_back({.name = "layers.0.router",
                         .parameters = {parameter("layers.0.correction", {5}, ParameterTag::bias)},
                         .trainable = false,
                         .state = true,
                         .layer = 0});
  model.blocks[1].units.push_back(kStateUnit);
  return model;
}

Programs balanced(const RankOptions& options) {
  return programs_of(model_with_state(), 2, 2, options);
}

RankOptions updating() {
  RankOptions options = two_micro_batches();
  options.update_state = true;
  return options;
}

TEST(StateOfBlocks, IsWholeAndResidentWhateverThePlan) {
  for (const StepProgram& program : balanced(updating())) {
    const ProgramUnit& unit = program.units.at(kStateUnit);
    EXPECT_TRUE(unit.resident);
    EXPECT_FALSE(unit.trainable);
    EXPECT_EQ(unit.shard_group, -1);
    for (const OpKind kind : {OpKind::gather_start, OpKind::reduce_start, OpKind::update})
      EXPECT_EQ(std::ranges::count_if(program.operations,
                                      [&](const Operation& operation) {
                                        return operation.kind == kind && operation.unit == kStateUnit;
                                      }),
                0);
    const Operation& update = program.operations.at(find(program, {OpKind::update_state, kStateUnit}));
    EXPECT_EQ(program.groups.at(static_cast<size_t>(update.group)).name, kLossGroup);
    EXPECT_EQ(update.bytes, 5 * 8);
  }
}

TEST(StateOfBlocks, StaysIfNothingIsToChangeIt) {
  for (const StepProgram& program : balanced(two_micro_batches()))
    EXPECT_TRUE(std::ranges::none_of(program.operations, [](const Operation& operation) {
      return operation.kind == OpKind::update_state;
    }));
}

std::vector<Fault> state_faults() {
  using K = OpKind;
  return {
      {"StateIsNotUpdated", balanced, updating(), kEveryRank,
       [](StepProgram& p) { erase(p, find(p, {K::update_state})); }, 0, "end of the program",
       "unit layers.0.router is never updated"},
      {"OneRankDoesNotUpdateIt", balanced, updating(), 2,
       [](StepProgram& p) { erase(p, find(p, {K::update_state})); }, 2, "end of the program",
       "unit layers.0.router is never updated"},
      {"ItIsUpdatedTwice", balanced, updating(), kEveryRank,
       [](StepProgram& p) { repeat(p, find(p, {K::update_state})); }, 0, "update_state layers.0.router",
       "was already updated"},
      {"ItIsUpdatedByTheTokensOfTheShardGroup", balanced, updating(), kEveryRank,
       [](StepProgram& p) { at(p, {K::update_state}).group = kShard; }, 0, "update_state layers.0.router",
       "but must run over loss {0, 1, 2, 3}"},
      {"ItIsUpdatedByTheTokensOfOneRank", balanced, updating(), kEveryRank,
       [](StepProgram& p) { at(p, {K::update_state}).group = -1; }, 0, "update_state layers.0.router",
       "but must run over loss {0, 1, 2, 3}"},
      {"ItIsUpdatedBeforeTheStepIsKnownToBeFinite", balanced, updating(), kEveryRank,
       [](StepProgram& p) { move(p, find(p, {K::update_state}), find(p, {K::check_finite})); }, 0,
       "update_state layers.0.router", "check"},
      {"AWeightIsUpdatedLikeState", balanced, updating(), kEveryRank,
       [](StepProgram& p) { at(p, {K::update_state}).unit = 1; }, 0, "update_state layers.0",
       "unit layers.0 is not state of a block"},
      {"StateIsUpdatedLikeAWeight", balanced, updating(), kEveryRank,
       [](StepProgram& p) { at(p, {K::update, 1}).unit = kStateUnit; }, 0, "update layers.0.router",
       "unit layers.0.router is frozen"},
      {"OneRankSumsFewerBytes", balanced, updating(), 1,
       [](StepProgram& p) { at(p, {K::update_state}).bytes /= 2; }, 1, "update_state layers.0.router",
       "bytes, but rank 0"},
  };
}

class PlantedStateFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedStateFault, IsFound) {
  expect_found(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedStateFault, ::testing::ValuesIn(state_faults()),
                         [](const auto& fault) { return fault.param.name; });

}  // namespace
}  // namespace stepforge::testing
