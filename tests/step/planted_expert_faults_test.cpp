// SPDX-License-Identifier: Apache-2.0
// Faults planted in programs whose experts are spread over ranks: the checker finds each.
#include <vector>

#include <gtest/gtest.h>

#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

constexpr int kExpertUnit = 2;  ///< of layers.0
constexpr auto kExpertAxis = static_cast<std::size_t>(BlockAxis::experts);

/// The small model; each layer has a unit of experts, and exchanges rows with their ranks.
ModelSpec expert_model() {
  ModelSpec model = small_model();
  std::vector<UnitSpec> units;
  for (BlockSpec& block : model.blocks) {
    const UnitSpec unit = model.units.at(static_cast<std::size_t>(block.units.front()));
    block.units = {static_cast<int>(units.size())};
    units.push_back(unit);
    if (block.kind != BlockKind::layer) continue;
    block.units.push_back(static_cast<int>(units.size()));
    units.push_back({.name = block.name + ".experts",
                     .parameters = {parameter(block.name + ".experts", {16, 8}, ParameterTag::matrix)},
                     .experts = true});
    add_exchange(block.regions.at(1), BlockAxis::experts, 16, 16);
  }
  model.units = units;
  return model;
}

Programs spread(RankOptions options, ParallelDims dims, int ranks) {
  Programs programs;
  for (int rank = 0; rank < ranks; ++rank) {
    options.plan.dims = dims;
    options.rank = {rank, ranks};
    programs.push_back(build_step(expert_model(), options));
  }
  return programs;
}

/// fsdp {0, 1, 2, 3}; ep {0, 1}, {2, 3}; efsdp {0, 2}, {1, 3}.
Programs of_four(const RankOptions& options) {
  return spread(options, {.ep = 2}, 4);
}

/// The same twice: replicas {0, 4} and so on.
Programs of_eight(const RankOptions& options) {
  return spread(options, {.dp_replicate = 2, .ep = 2}, 8);
}

/// ep {0, 1}: each rank has all of its experts.
Programs of_two(const RankOptions& options) {
  return spread(options, {.ep = 2}, 2);
}

GroupExchange& exchange(StepProgram& program, OpKind kind, int block, int micro_batch) {
  return at(program, {kind, -1, block, micro_batch}).exchanges.at(kExpertAxis);
}

std::vector<Fault> expert_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  RankOptions recomputed = plain;
  recomputed.recompute.mode = RecomputePolicy::Mode::full;
  const auto over = [](OpKind kind, std::string_view group) -> Damage {
    return [=](StepProgram& p) { at(p, {kind, kExpertUnit}).group = group_of(p, group); };
  };
  return {
      {"TheirGradientsAreSummedOverAllShards", of_four, plain, kEveryRank, over(K::reduce_start, kShardGroup),
       0, "reduce_start layers.0.experts", "it runs over fsdp {0, 1, 2, 3}, but must run over efsdp {0, 2}"},
      {"TheirGradientsAreSummedOverTheRanksOfOtherExperts", of_four, plain, kEveryRank,
       over(K::reduce_start, kExpertGroup), 0, "reduce_start layers.0.experts",
       "it runs over ep {0, 1}, but must run over efsdp {0, 2}"},
      {"TheyAreGatheredFromAllShards", of_four, plain, kEveryRank, over(K::gather_start, kShardGroup), 0,
       "gather_start layers.0.experts", "it runs over fsdp {0, 1, 2, 3}, but must run over efsdp {0, 2}"},
      {"OneRankGathersTheExpertsOfOthers", of_four, plain, 3, over(K::gather_start, kExpertGroup), 3,
       "gather_start layers.0.experts", "it runs over ep {2, 3}, but must run over efsdp {1, 3}"},
      {"TheRestOfTheLayerIsReducedLikeThem", of_four, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).group = group_of(p, kExpertShardGroup); }, 0,
       "reduce_start layers.0", "it runs over efsdp {0, 2}, but must run over fsdp {0, 1, 2, 3}"},
      {"TheirGradientsAreNotReduced", of_four, plain, kEveryRank,
       [](StepProgram& p) { erase_both(p, K::reduce_start, K::reduce_wait, kExpertUnit); }, 0,
       "gradient_norm", "the gradient of unit layers.0.experts has not been reduced"},
      {"TheirGradientsAreReducedTwice", of_four, plain, kEveryRank,
       [](StepProgram& p) { repeat(p, find(p, {K::reduce_start, kExpertUnit})); }, 0,
       "reduce_start layers.0.experts", "the gradient of unit layers.0.experts is still being reduced"},
      {"TheirGradientsAreReducedBeforeTheLastMicroBatch", of_four, plain, kEveryRank,
       [](StepProgram& p) {
         move(p, find(p, {K::reduce_start, kExpertUnit}), find(p, {K::backward, -1, 1, 1}));
       },
       0, "backward layers.0 m1", "the gradient of unit layers.0.experts is still being reduced"},
      {"TheyAreNotGathered", of_four, plain, kEveryRank,
       [](StepProgram& p) { erase_both(p, K::gather_start, K::gather_wait, kExpertUnit); }, 0, "layers.0",
       "unit layers.0.experts has not been gathered"},
      {"TheyAreReleasedBeforeTheirUse", of_four, plain, kEveryRank,
       [](StepProgram& p) { move(p, find(p, {K::release, kExpertUnit}), find(p, {K::forward, -1, 1, 0})); },
       0, "forward layers.0 m0", "layers.0.experts"},
      {"TheyAreNotUpdated", of_four, plain, kEveryRank,
       [](StepProgram& p) { erase(p, find(p, {K::update, kExpertUnit})); }, 0, "end of the program",
       "unit layers.0.experts is never updated"},
      {"TheyAreUpdatedTwice", of_four, plain, kEveryRank,
       [](StepProgram& p) { repeat(p, find(p, {K::update, kExpertUnit})); }, 0, "update layers.0.experts",
       "unit layers.0.experts was already updated"},
      {"TheNormIsThatOfTheRanksWithTheSameExperts", of_four, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::gradient_norm}).group = group_of(p, kExpertShardGroup); }, 0,
       "gradient_norm", "it runs over efsdp {0, 2}, but must run over fsdp {0, 1, 2, 3}"},
      {"TheNormIsThatOfTheRanksOfOneLayersExperts", of_two, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::gradient_norm}).group = group_of(p, kExpertGroup); }, 0,
       "gradient_norm", "it runs over ep {0, 1}, but must run over fsdp {0, 1}"},
      {"TheNormIsThatOfOneRank", of_four, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::gradient_norm}).group = -1; }, 0, "gradient_norm",
       "it runs over no group, but must run over fsdp {0, 1, 2, 3}"},
      {"AForwardKeepsItsRows", of_four, plain, kEveryRank,
       [](StepProgram& p) { exchange(p, K::forward, 1, 0).group = -1; }, 0, "forward layers.0 m0",
       "it runs over no group, but the layers of block layers.0 are divided over ep {0, 1}"},
      {"OneRankKeepsItsRows", of_four, plain, 2,
       [](StepProgram& p) { exchange(p, K::forward, 2, 1).group = -1; }, 2, "forward layers.1 m1",
       "are divided over ep {2, 3}"},
      {"RowsGoToTheRanksWithTheSameExperts", of_four, plain, kEveryRank,
       [](StepProgram& p) { exchange(p, K::forward, 1, 0).group = group_of(p, kExpertShardGroup); }, 0,
       "forward layers.0 m0", "it runs over efsdp {0, 2}"},
      {"RowsGoToAllShards", of_four, plain, kEveryRank,
       [](StepProgram& p) { exchange(p, K::forward, 1, 0).group = group_of(p, kShardGroup); }, 0,
       "forward layers.0 m0", "it runs over fsdp {0, 1, 2, 3}"},
      {"ABackwardKeepsTheGradientsOfRows", of_four, plain, kEveryRank,
       [](StepProgram& p) { exchange(p, K::backward, 2, 1).group = -1; }, 0, "backward layers.1 m1",
       "are divided over ep {0, 1}"},
      {"ARecomputationKeepsItsRows", of_four, recomputed, kEveryRank,
       [](StepProgram& p) { exchange(p, K::recompute, 1, 0).group = -1; }, 0, "recompute layers.0 m0",
       "are divided over ep {0, 1}"},
      {"OneRankExchangesFewerRows", of_four, plain, 1,
       [](StepProgram& p) { exchange(p, K::backward, 1, 0).bytes /= 2; }, 1, "backward layers.0 m0",
       "bytes, but rank 0"},
      {"OneRankRecomputesMoreThanTheOthers", of_four, recomputed, 1,
       [](StepProgram& p) { exchange(p, K::recompute, 1, 1).bytes *= 2; }, 1, "recompute layers.0 m1",
       "bytes, but rank 0"},
      {"OneRankTakesMicroBatchesInAnotherOrder", of_four, plain, 1,
       [](StepProgram& p) { move(p, find(p, {K::backward, -1, 1, 0}), find(p, {K::backward, -1, 2, 0})); }, 1,
       "backward layers.0 m0", "unit layers.0 is still being gathered"},
      {"OneRankIsAmongOtherExperts", of_four, plain, 1,
       [](StepProgram& p) { p.groups[static_cast<std::size_t>(group_of(p, kExpertGroup))].ranks = {1, 2}; },
       0, "forward layers.0 m0", "rank 1 is a member of ep {0, 1} here, but has no such group itself"},
      {"OneRankSharesTheExpertsOfItsNeighbour", of_four, plain, 1,
       [](StepProgram& p) {
         p.groups[static_cast<std::size_t>(group_of(p, kExpertShardGroup))].ranks = {1, 2};
       },
       1, "gather_start layers.0.experts",
       "rank 2 is a member of efsdp {1, 2} here, but has no such group itself"},
      {"ReplicasOfExpertsAreNotSummed", of_eight, plain, kEveryRank,
       [](StepProgram& p) { erase_both(p, K::all_reduce_start, K::all_reduce_wait, kExpertUnit); }, 0,
       "gradient_norm", "the gradient of unit layers.0.experts has not been all-reduced"},
      {"ReplicasOfExpertsAreSummedOverOtherExperts", of_eight, plain, kEveryRank,
       over(K::all_reduce_start, kExpertGroup), 0, "all_reduce_start layers.0.experts",
       "it runs over ep {0, 1}, but must run over dp_replicate {0, 4}"},
      {"ReplicasOfExpertsAreSummedTwice", of_eight, plain, kEveryRank,
       [](StepProgram& p) { repeat(p, find(p, {K::all_reduce_start, kExpertUnit})); }, 0,
       "all_reduce_start layers.0.experts",
       "the gradient of unit layers.0.experts is already being all-reduced"},
      {"ExpertsOfOneRankAreReduced", of_two, plain, kEveryRank,
       [](StepProgram& p) {
         Operation reduce = at(p, {K::reduce_start, 1});
         reduce.unit = kExpertUnit;
         reduce.allocates.clear();
         reduce.frees.clear();
         insert_operations(p.operations, {{find(p, {K::reduce_start, 1}), reduce}});
       },
       0, "reduce_start layers.0.experts", "it runs over fsdp {0, 1}, but must run over no group"},
  };
}

class PlantedExpertFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedExpertFault, IsFound) {
  expect_found(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedExpertFault, ::testing::ValuesIn(expert_faults()),
                         [](const auto& fault) { return fault.param.name; });

/// The order of collectives with experts: those of a block are gathered together.
TEST(ExpertPrograms, UnitsOfOneBlockCountAsOneInPrefetchDistances) {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, GatherPolicy::Reshard::always, 1});
  StepProgram program = of_four(options).at(0);
  const std::size_t forward = find(program, {OpKind::forward, -1, 1});
  const std::size_t last_start = find(program, {OpKind::gather_start, 4});  // layers.1.experts
  EXPECT_LT(find(program, {OpKind::gather_start, 3}), forward);
  EXPECT_LT(last_start, forward);
  EXPECT_GT(find(program, {OpKind::gather_start, 5}), forward);  // the head
}

}  // namespace
}  // namespace stepforge::testing
