// SPDX-License-Identifier: Apache-2.0
// Random combinations of all options of a step.
#include <gtest/gtest.h>

#include "tests/step/programs.h"
#include "tests/support/dice.h"
#include "tests/support/long_tests.h"
#include "tests/support/sanitizer.h"

namespace stepforge::testing {
namespace {

PrefetchPolicy some_prefetch(Dice& dice, const ModelSpec& model) {
  PrefetchPolicy prefetch;
  prefetch.forward = dice.below(4);
  prefetch.backward = dice.below(4);
  const auto some_units = [&](std::size_t except) {
    std::vector<std::string> names;
    for (std::size_t u = 0; u < model.units.size(); ++u)
      if (u != except && dice.below(3) == 0) names.push_back(model.units[u].name);
    return names;
  };
  for (std::size_t u = 0; u < model.units.size(); ++u)
    if (dice.below(3) == 0) prefetch.lists.push_back({model.units[u].name, some_units(u), some_units(u)});
  return prefetch;
}

RecomputePolicy some_recomputation(Dice& dice) {
  RecomputePolicy recompute;
  recompute.mode = static_cast<RecomputeMode>(dice.below(7));
  recompute.n = 1 + dice.below(3);
  if (recompute.mode == RecomputeMode::blocks) recompute.blocks = {"layers.0"};
  if (recompute.mode == RecomputeMode::regions) recompute.regions = {"mlp"};
  recompute.budget = dice.below(3) / 2.0;
  return recompute;
}

ModelSpec some_model(Dice& dice) {
  ModelSpec model = small_model(1 + dice.below(4), dice.toss());
  for (std::size_t u = 0; u + 1 < model.units.size(); ++u) {  // the head remains
    model.units[u].trainable = dice.below(5) != 0;
    model.units[u].parameters[0].shape[0] *= 1 + dice.below(90);
  }
  return model;
}

RankOptions some_options(Dice& dice, const ModelSpec& model) {
  RankOptions options = small_options(1 + dice.below(5));
  options.kind = dice.below(8) == 0 ? ProgramKind::evaluate : ProgramKind::train;
  options.recompute = some_recomputation(dice);
  options.plan.gather = dice.toss() ? DType::bf16 : DType::f32;
  options.gather.reshard = static_cast<ReshardMode>(dice.below(4));
  options.gather.n = 1 + dice.below(3);
  options.gather.prefetch = some_prefetch(dice, model);
  options.ordered = dice.below(3) == 0;
  options.reduce.in_flight = 1 + dice.below(4);
  options.reduce.each_micro_batch = !options.ordered && dice.toss();
  if (!options.ordered) {
    options.plan.reduce = dice.toss() ? DType::bf16 : DType::f32;
    options.plan.partition.kind = static_cast<PartitionKind>(dice.below(3));
  }
  options.plan.offload = dice.toss();
  options.offload.prefetch = dice.below(3);
  return options;
}

TEST(Combinations, RandomOptionsMakeSoundPrograms) {
  const uint64_t seeds = long_tests() ? 3000 : kSanitizer ? 100 : 300;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Dice dice(seed);
    const ModelSpec model = some_model(dice);
    const RankOptions options = some_options(dice, model);
    const int shards = 1 + dice.below(4);
    const int replicas = 1 + dice.below(3);
    const Programs programs = programs_of(model, shards, replicas, options);
    try {
      const CheckResult result = check_programs(programs);
      const SymmetryProof proof = check_symmetric(programs[0], shards * replicas, [&](int rank) {
        return views_of(programs[static_cast<std::size_t>(rank)].groups);
      });
      ASSERT_EQ(proof.peak_bytes, peak_by_brute_force(programs[0])) << "seed " << seed;
      ASSERT_EQ(result.peak_bytes.back(), proof.peak_bytes) << "seed " << seed;
    } catch (const ProgramError& error) {
      FAIL() << "seed " << seed << ": " << error.what() << "\n"
             << listing(programs[static_cast<std::size_t>(error.rank())]);
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
