// SPDX-License-Identifier: Apache-2.0
// Faults planted in programs whose experts are spread over ranks: the checker finds each.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/step/effects.h"
#include "tests/step/expert_model.h"
#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

Programs spread(RankOptions options, ParallelDims dims, int ranks, const ModelSpec& model = expert_model()) {
  Programs programs;
  for (int rank = 0; rank < ranks; ++rank) {
    options.plan.dims = dims;
    options.rank = {rank, ranks};
    programs.push_back(build_step(model, options));
  }
  return programs;
}

/// fsdp {0, 1, 2, 3}; ep {0, 1}, {2, 3}; efsdp {0, 2}, {1, 3}.
Programs of_four(const RankOptions& options) {
  return spread(options, {.ep = 2}, 4);
}

/// The same with tokens that are gathered.
Programs of_four_gathered(const RankOptions& options) {
  return spread(options, {.ep = 2}, 4, expert_model(2, DispatchMethod::all_gather));
}

/// The same twice: replicas {0, 4} and so on.
Programs of_eight(const RankOptions& options) {
  return spread(options, {.dp_replicate = 2, .ep = 2}, 8);
}

/// ep {0, 1}: each rank has all of its experts.
Programs of_two(const RankOptions& options) {
  return spread(options, {.ep = 2}, 2);
}

/// The rest of each layer takes slices of the tokens: fsdp {0, 2}; tp {0, 1}; fsdp_tp {0, 1, 2, 3}; ep {0, 1}; efsdp {0, 2}.
Programs of_slices(const RankOptions& options) {
  ModelSpec model = expert_model();
  for (UnitSpec& unit : model.units)
    if (unit.name.starts_with("layers") && unit.mesh == UnitMesh::rows) unit.mesh = UnitMesh::slices;
  return spread(options, {.dp_shard = 2, .tp = 2, .ep = 2}, 4, model);
}

/// Moves an operation to the place of another one.
Damage move_to(const Match& moved, const Match& place) {
  return [=](StepProgram& p) { move(p, find(p, moved), find(p, place)); };
}

Damage erase_one(const Match& match) {
  return [=](StepProgram& p) { erase(p, find(p, match)); };
}

Damage repeat_one(const Match& match) {
  return [=](StepProgram& p) { repeat(p, find(p, match)); };
}

/// The operation forgets that it needs others.
Damage forget_needs(const Match& match) {
  return [=](StepProgram& p) { at(p, match).needs.clear(); };
}

/// The operation frees a value of a block before its time.
Damage free_early(const Match& match, std::string_view value) {
  return [=](StepProgram& p) {
    for (int buffer = 0; buffer < std::ssize(p.buffers); ++buffer) {
      if (element(p.buffers, buffer).name != value) continue;
      for (Operation& operation : p.operations) std::erase(operation.frees, buffer);
      at(p, match).frees.push_back(buffer);
    }
  };
}

std::vector<Fault> expert_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  RankOptions recomputed = plain;
  recomputed.recompute.mode = RecomputeMode::full;
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
         move(p, find(p, {K::reduce_start, kExpertUnit}), find(p, {K::backward, -1, kExpertsBlock, 1}));
       },
       0, "backward layers.0.experts m1", "the gradient of unit layers.0.experts is still being reduced"},
      {"TheyAreNotGathered", of_four, plain, kEveryRank,
       [](StepProgram& p) { erase_both(p, K::gather_start, K::gather_wait, kExpertUnit); }, 0,
       "layers.0.experts", "unit layers.0.experts has not been gathered"},
      {"TheyAreReleasedBeforeTheirUse", of_four, plain, kEveryRank,
       move_to({K::release, kExpertUnit}, {K::forward, -1, kExpertsBlock, 0}), 0,
       "forward layers.0.experts m0", "unit layers.0.experts was released"},
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
      {"OneRankIsAmongOtherExperts", of_four, plain, 1,
       [](StepProgram& p) { p.groups[static_cast<std::size_t>(group_of(p, kExpertGroup))].ranks = {1, 2}; },
       0, "dispatch layers.0.experts m0",
       "rank 1 is a member of ep {0, 1} here, but has no such group itself"},
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
      // torchtitan#2387, #2416, Megatron-LM#599, #619
      {"RoutersOfSlicesAreReducedLikeAttention", of_slices, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).group = group_of(p, kShardGroup); }, 0,
       "reduce_start layers.0", "it runs over fsdp {0, 2}, but must run over fsdp_tp {0, 1, 2, 3}"},
      {"ExpertsOfSlicesAreReducedLikeRouters", of_slices, plain, kEveryRank,
       over(K::reduce_start, kSliceShardGroup), 0, "reduce_start layers.0.experts",
       "it runs over fsdp_tp {0, 1, 2, 3}, but must run over efsdp {0, 2}"},
      {"ExpertsOfSlicesAreReducedOverTheRanksOfOtherSlices", of_slices, plain, kEveryRank,
       over(K::reduce_start, kTensorGroup), 0, "reduce_start layers.0.experts",
       "it runs over tp {0, 1}, but must run over efsdp {0, 2}"},
      {"TheNormOfSlicesIsThatOfAllRanksBeforeItIsJoined", of_slices, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::gradient_norm}).group = group_of(p, kSliceShardGroup); }, 0,
       "gradient_norm", "it runs over fsdp_tp {0, 1, 2, 3}, but must run over fsdp {0, 2}"},
      {"TheNormOfSlicesIsNotJoined", of_slices, plain, kEveryRank, erase_one({K::join_norm}), 0,
       "check_finite", "norm"},
  };
}

/// Of the operations that take rows to experts and back.
std::vector<Fault> exchange_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  RankOptions recomputed = plain;
  recomputed.recompute.mode = RecomputeMode::full;
  const auto of = [](OpKind kind, int micro_batch = 0) -> Match {
    return {kind, -1, kExpertsBlock, micro_batch};
  };
  const auto over = [of](OpKind kind, std::string_view group) -> Damage {
    return [=](StepProgram& p) { at(p, of(kind)).group = group_of(p, group); };
  };
  const Match experts = of(K::forward);
  const Match experts_backward = of(K::backward);
  const Match router{K::forward, -1, kRouterBlock, 0};
  const Match shared_backward{K::backward, -1, kSharedBlock, 0};
  const Match router_backward{K::backward, -1, kRouterBlock, 0};
  const Match join{K::forward, -1, kJoinBlock, 0};
  const Match join_backward{K::backward, -1, kJoinBlock, 0};
  const std::string at_dispatch = "dispatch layers.0.experts m0";
  const std::string at_combine = "combine layers.0.experts m0";
  return {
      {"RowsAreNotDispatched", of_four, plain, kEveryRank, erase_one(of(K::dispatch)), 0,
       "forward layers.0.experts m0",
       "value rows of layers.0.experts on micro-batch 0 has not been computed"},
      {"RowsAreDispatchedBeforeTheyAreChosen", of_four, plain, kEveryRank, move_to(of(K::dispatch), router),
       0, at_dispatch, "value layers.0.tokens on micro-batch 0 has not been computed"},
      {"RowsAreDispatchedAfterTheirExperts", of_four, plain, kEveryRank, move_to(experts, of(K::dispatch)), 0,
       "forward layers.0.experts m0",
       "value rows of layers.0.experts on micro-batch 0 has not been computed"},
      {"RowsAreDispatchedTwice", of_four, plain, kEveryRank, repeat_one(of(K::dispatch)), 0, at_dispatch,
       "the dispatch to block layers.0.experts on micro-batch 0 was already made"},
      {"RowsAreDispatchedAgainForARecomputation", of_four, recomputed, kEveryRank,
       [=](StepProgram& p) {
         const Operation again = at(p, of(K::dispatch));
         insert_operations(p.operations, {{find(p, of(K::recompute)), again}});
       },
       0, at_dispatch, "the dispatch to block layers.0.experts on micro-batch 0 was already made"},
      {"RowsOfAnotherMicroBatchAreDispatched", of_four, plain, kEveryRank,
       [=](StepProgram& p) { at(p, of(K::dispatch)).micro_batch = 1; }, 0, "dispatch layers.0.experts m1",
       "value layers.0.tokens on micro-batch 1 has not been computed"},
      {"RowsAreDispatchedToAnotherLayer", of_four, plain, kEveryRank,
       [=](StepProgram& p) { at(p, of(K::dispatch)).block = kExpertsBlock + kLayerBlocks; }, 0,
       "dispatch layers.1.experts m0", "value layers.1.tokens on micro-batch 0 has not been computed"},
      {"RowsAreDispatchedToABlockWithoutExperts", of_four, plain, kEveryRank,
       [=](StepProgram& p) { at(p, of(K::dispatch)).block = kSharedBlock; }, 0, "dispatch layers.0.shared m0",
       "no rows are dispatched to block layers.0.shared"},
      {"RowsStayOnTheirRank", of_four, plain, kEveryRank,
       [=](StepProgram& p) { at(p, of(K::dispatch)).group = -1; }, 0, at_dispatch,
       "it runs over no group, but must run over ep {0, 1}"},
      {"RowsGoToTheRanksWithTheSameExperts", of_four, plain, kEveryRank, over(K::dispatch, kExpertShardGroup),
       0, at_dispatch, "it runs over efsdp {0, 2}, but must run over ep {0, 1}"},
      {"RowsGoToAllShards", of_four, plain, kEveryRank, over(K::dispatch, kShardGroup), 0, at_dispatch,
       "it runs over fsdp {0, 1, 2, 3}, but must run over ep {0, 1}"},
      {"OneRankKeepsItsRows", of_four, plain, 2,
       [=](StepProgram& p) { at(p, of(K::dispatch, 1)).group = -1; }, 2, "dispatch layers.0.experts m1",
       "it runs over no group, but must run over ep {2, 3}"},
      {"RowsAreDispatchedOnTheComputeLane", of_four, plain, kEveryRank,
       [=](StepProgram& p) { at(p, of(K::dispatch)).lane = Lane::compute; }, 0, at_dispatch,
       "it runs on lane compute, not exchange"},
      {"ResultsComeBackOnTheLaneOfReductions", of_four, plain, kEveryRank,
       [=](StepProgram& p) { at(p, of(K::combine)).lane = Lane::reduce; }, 0, at_combine,
       "it runs on lane reduce, not exchange"},
      {"ResultsAreNotCombined", of_four, plain, kEveryRank, erase_one(of(K::combine)), 0,
       "forward layers.0.join m0", "value layers.0.experts on micro-batch 0 has not been computed"},
      {"ResultsAreCombinedBeforeTheyAreComputed", of_four, plain, kEveryRank,
       move_to(of(K::combine), experts), 0, at_combine,
       "value results of layers.0.experts on micro-batch 0 has not been computed"},
      {"ResultsAreCombinedTwice", of_four, plain, kEveryRank, repeat_one(of(K::combine)), 0, at_combine,
       "value layers.0.experts on micro-batch 0 was already computed"},
      {"ResultsAreJoinedBeforeTheyAreBack", of_four, plain, kEveryRank, move_to(join, of(K::combine)), 0,
       "forward layers.0.join m0", "value layers.0.experts on micro-batch 0 has not been computed"},
      {"ResultsComeBackOverAnotherGroup", of_four, plain, kEveryRank, over(K::combine, kExpertShardGroup), 0,
       at_combine, "it runs over efsdp {0, 2}, but must run over ep {0, 1}"},
      {"GradientsOfResultsStay", of_four, plain, kEveryRank, erase_one(of(K::combine_gradient)), 0,
       "backward layers.0.experts m0",
       "the gradient of value results of layers.0.experts on micro-batch 0 has not been computed"},
      {"GradientsOfResultsLeaveTooEarly", of_four, plain, kEveryRank,
       move_to(of(K::combine_gradient), join_backward), 0, "combine_gradient layers.0.experts m0",
       "the gradient of value layers.0.experts on micro-batch 0 has not been computed"},
      {"GradientsOfResultsLeaveTwice", of_four, plain, kEveryRank, repeat_one(of(K::combine_gradient)), 0,
       "combine_gradient layers.0.experts m0",
       "the gradient of value layers.0.experts on micro-batch 0 was already used"},
      {"GradientsOfAnotherMicroBatchLeave", of_four, plain, kEveryRank,
       [=](StepProgram& p) { at(p, of(K::combine_gradient)).micro_batch = 1; }, 0,
       "combine_gradient layers.0.experts m1",
       "the gradient of value layers.0.experts on micro-batch 1 has not been computed"},
      {"GradientsOfResultsGoToAllShards", of_four, plain, kEveryRank, over(K::combine_gradient, kShardGroup),
       0, "combine_gradient layers.0.experts m0",
       "it runs over fsdp {0, 1, 2, 3}, but must run over ep {0, 1}"},
      {"GradientsOfRowsAreNotReturned", of_four, plain, kEveryRank, erase_one(of(K::dispatch_gradient)), 0,
       "backward layers.0 m0",
       "the gradient of value layers.0.weights on micro-batch 0 has not been computed"},
      {"GradientsOfRowsAreReturnedTooEarly", of_four, plain, kEveryRank,
       move_to(of(K::dispatch_gradient), experts_backward), 0, "dispatch_gradient layers.0.experts m0",
       "the gradient of value rows of layers.0.experts on micro-batch 0 has not been computed"},
      {"GradientsOfRowsAreReturnedTooLate", of_four, plain, kEveryRank,
       move_to(of(K::dispatch_gradient), {K::backward, -1, 0, 0}), 0, "backward layers.0 m0",
       "the gradient of value layers.0.weights on micro-batch 0 has not been computed"},
      {"GradientsOfRowsAreReturnedTwice", of_four, plain, kEveryRank, repeat_one(of(K::dispatch_gradient)), 0,
       "dispatch_gradient layers.0.experts m0",
       "the gradient of value rows of layers.0.experts on micro-batch 0 was already used"},
      {"GradientsOfRowsComeBackOverAnotherGroup", of_four, plain, kEveryRank,
       over(K::dispatch_gradient, kExpertShardGroup), 0, "dispatch_gradient layers.0.experts m0",
       "it runs over efsdp {0, 2}, but must run over ep {0, 1}"},
      {"ExpertsDoNotWaitForTheirRows", of_four, plain, kEveryRank, forget_needs(experts), 0,
       "forward layers.0.experts m0", "runs on lane exchange, and no dependency orders them"},
      {"ADispatchDoesNotWaitForItsRows", of_four, plain, kEveryRank, forget_needs(of(K::dispatch)), 0,
       at_dispatch, "runs on lane compute, and no dependency orders them"},
      {"AJoinDoesNotWaitForItsResults", of_four, plain, kEveryRank, forget_needs(join), 0,
       "forward layers.0.join m0", "runs on lane exchange, and no dependency orders them"},
      {"GradientsOfSharedExpertsAreAddedWhileThoseOfRowsCome", of_four, plain, kEveryRank,
       move_to(shared_backward, router_backward), 0, "backward layers.0.shared m0",
       "runs on lane exchange, and no dependency orders them"},
      {"RowsAreFreedBeforeTheirBackward", of_four, plain, kEveryRank,
       free_early(of(K::combine), "bundle rows of layers.0.experts m0"), 0, "backward layers.0.experts m0",
       "buffer bundle rows of layers.0.experts m0 was already freed"},
      {"RowsAreFreedBeforeTheirRecomputation", of_four, recomputed, kEveryRank,
       free_early(of(K::combine), "bundle rows of layers.0.experts m0"), 0, "recompute layers.0.experts m0",
       "buffer bundle rows of layers.0.experts m0 was already freed"},
      {"RoutesAreFreedBeforeResultsComeBack", of_four, plain, kEveryRank,
       free_early(experts, "routes layers.0.experts m0"), 0, at_combine,
       "buffer routes layers.0.experts m0 was already freed"},
      {"TokensThatTheRouterKeepsAreFreedEarly", of_four, plain, kEveryRank,
       free_early(shared_backward, "bundle layers.0.tokens m0"), 0, "backward layers.0 m0",
       "buffer bundle layers.0.tokens m0 was already freed"},
      {"OneRankExchangesFewerRows", of_four, plain, 1,
       [=](StepProgram& p) { at(p, of(K::dispatch)).bytes /= 2; }, 1, at_dispatch, "bytes, but rank 0"},
      {"OneRankReturnsMoreGradients", of_four, plain, 1,
       [=](StepProgram& p) { at(p, of(K::dispatch_gradient, 1)).bytes *= 2; }, 1,
       "dispatch_gradient layers.0.experts m1", "bytes, but rank 0"},
  };
}

/// Of exchanges by all-gather and reduce-scatter: those of all-to-all, and ranks that exchange in different ways. The method
/// is one of the block, so a rank with another one differs in its first exchange.
std::vector<Fault> gathered_faults() {
  std::vector<Fault> faults = exchange_faults();
  for (Fault& fault : faults) fault.programs = of_four_gathered;
  const RankOptions plain = two_micro_batches();
  const auto by = [](DispatchMethod method) -> Damage {
    return [=](StepProgram& p) { element(p.blocks, kExpertsBlock).method = method; };
  };
  faults.push_back({"OneRankSendsRowsToOneThatGathersTokens", of_four_gathered, plain, 1,
                    by(DispatchMethod::all_to_all), 1, "dispatch layers.0.experts m0",
                    "is made by all_to_all, but rank 0"});
  faults.push_back({"OneRankGathersTokensOfOneThatSendsRows", of_four, plain, 3,
                    by(DispatchMethod::all_gather), 3, "dispatch layers.0.experts m0",
                    "is made by all_gather, but rank 2"});
  return faults;
}

class PlantedExpertFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedExpertFault, IsFound) {
  expect_found(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedExpertFault, ::testing::ValuesIn(expert_faults()),
                         [](const auto& fault) { return fault.param.name; });
INSTANTIATE_TEST_SUITE_P(Exchanges, PlantedExpertFault, ::testing::ValuesIn(exchange_faults()),
                         [](const auto& fault) { return fault.param.name; });
INSTANTIATE_TEST_SUITE_P(Gathered, PlantedExpertFault, ::testing::ValuesIn(gathered_faults()),
                         [](const auto& fault) { return fault.param.name; });

/// The method changes what is exchanged, and neither the operations nor their order.
TEST(ExpertPrograms, OfGatheredTokensHaveTheOperationsOfDispatchedRows) {
  const StepProgram rows = of_four(two_micro_batches()).at(0);
  const StepProgram tokens = of_four_gathered(two_micro_batches()).at(0);
  ASSERT_EQ(tokens.operations.size(), rows.operations.size());
  for (std::size_t i = 0; i < rows.operations.size(); ++i) {
    EXPECT_EQ(tokens.operations[i].kind, rows.operations[i].kind) << i;
    EXPECT_EQ(tokens.operations[i].needs, rows.operations[i].needs) << i;
  }
  const auto text = [&](OpKind kind) {
    return operation_text(tokens, tokens.operations[find(tokens, {kind, -1, kExpertsBlock, 0})]);
  };
  EXPECT_EQ(text(OpKind::dispatch), "dispatch layers.0.experts m0 over ep by all_gather");
  EXPECT_EQ(text(OpKind::combine), "combine layers.0.experts m0 over ep by reduce_scatter");
  EXPECT_EQ(text(OpKind::combine_gradient), "combine_gradient layers.0.experts m0 over ep by all_gather");
  EXPECT_EQ(text(OpKind::dispatch_gradient),
            "dispatch_gradient layers.0.experts m0 over ep by reduce_scatter");
}

/// All sizes of gathered tokens are known: of the tokens of two ranks, their weights and experts, and how many they are.
TEST(ExpertPrograms, OfGatheredTokensMoveThoseOfAllRanks) {
  const StepProgram program = of_four_gathered(two_micro_batches()).at(0);
  const ProgramBlock& block = element(program.blocks, kExpertsBlock);
  const auto of = [&](std::size_t i) { return 2 * element(program.values, block.sent.at(i)).bytes(); };
  const auto bytes = [&](OpKind kind) {
    return program.operations[find(program, {kind, -1, kExpertsBlock, 0})].bytes;
  };
  EXPECT_EQ(bytes(OpKind::dispatch), of(0) + of(1) + of(2) + 2 * 8);
  EXPECT_EQ(bytes(OpKind::combine), of(0));
  EXPECT_EQ(bytes(OpKind::combine_gradient), of(0));
  EXPECT_EQ(bytes(OpKind::dispatch_gradient), of(0) + of(1));
}

/// Whatever else the programs do.
TEST(ExpertPrograms, AreSoundWithEveryOption) {
  for (const ProgramKind kind : {ProgramKind::train, ProgramKind::evaluate, ProgramKind::generate}) {
    for (const int micro_batches : {1, 3}) {
      for (const auto mode :
           {RecomputeMode::none, RecomputeMode::full, RecomputeMode::blocks, RecomputeMode::regions}) {
        for (const bool each : {false, true}) {
          RankOptions options = small_options(micro_batches);
          options.kind = kind;
          options.set_gathers({DType::bf16, ReshardMode::always, 1});
          if (kind == ProgramKind::train) {
            options.recompute.mode = mode;
            options.recompute.blocks = {"layers.1"};
            options.recompute.regions = {"mlp"};
          }
          options.reduce.each_micro_batch = each;
          for (const auto& programs : {of_two(options), of_four(options), of_four_gathered(options),
                                       of_eight(options), of_slices(options)})
            EXPECT_NO_THROW(check_programs(programs));
        }
      }
    }
  }
}

/// Below the first trained unit there are no gradients, so none come back.
TEST(ExpertPrograms, FrozenLayersReturnNoGradients) {
  ModelSpec model = expert_model();
  for (const int unit : {0, 1}) model.units.at(static_cast<std::size_t>(unit)).trainable = false;
  Programs programs;
  for (int rank = 0; rank < 2; ++rank) {
    RankOptions options = small_options(1);
    options.plan.dims = {.ep = 2};
    options.rank = {rank, 2};
    programs.push_back(build_step(model, options));
  }
  EXPECT_NO_THROW(check_programs(programs));
  const auto count = [&](OpKind kind) {
    return std::ranges::count(programs[0].operations, kind, &Operation::kind);
  };
  EXPECT_EQ(count(OpKind::combine_gradient), 2);   // the experts of the first layer are trained
  EXPECT_EQ(count(OpKind::dispatch_gradient), 1);  // its router is not
}

/// The operations of a layer of the first micro-batch from `begin` on, of these blocks.
std::string order_of(const StepProgram& program, std::size_t begin, int first_block, int last_block) {
  std::string text;
  for (std::size_t i = begin; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (operation.micro_batch != 0 || operation.block < first_block || operation.block > last_block) continue;
    text += format("{}{} {}", text.empty() ? "" : ", ", op_name(operation.kind),
                   element(program.blocks, operation.block).name);
  }
  return text;
}

TEST(ExpertPrograms, BlocksThatDoNotNeedTheRowsAreListedBesideTheExchange) {
  const StepProgram program = of_four(small_options(1)).at(0);
  const std::size_t backward = find(program, {OpKind::backward});
  EXPECT_TRUE(
      order_of(program, 0, kRouterBlock, kJoinBlock)
          .starts_with("forward layers.0, dispatch layers.0.experts, forward layers.0.shared, forward "
                       "layers.0.experts, combine layers.0.experts, forward layers.0.join"));
  EXPECT_EQ(order_of(program, backward, kRouterBlock, kJoinBlock),
            "backward layers.0.join, combine_gradient layers.0.experts, backward layers.0.shared, "
            "backward layers.0.experts, dispatch_gradient layers.0.experts, backward layers.0");
  // And they do not wait for it.
  const HappensBefore before(program);
  const auto place = [&](OpKind kind, int block) { return find(program, {kind, -1, block}); };
  EXPECT_FALSE(before(place(OpKind::dispatch, kExpertsBlock), place(OpKind::forward, kSharedBlock)));
  EXPECT_TRUE(before(place(OpKind::dispatch, kExpertsBlock), place(OpKind::forward, kExpertsBlock)));
  EXPECT_FALSE(before(place(OpKind::combine_gradient, kExpertsBlock), place(OpKind::backward, kSharedBlock)));
  EXPECT_TRUE(before(place(OpKind::combine_gradient, kExpertsBlock), place(OpKind::backward, kExpertsBlock)));
}

/// The choice of experts passes from the router to the experts, and nothing comes back for it.
TEST(ExpertPrograms, IntegersHaveNoGradients) {
  const StepProgram program = of_four(small_options(1)).at(0);
  EXPECT_FALSE(std::ranges::all_of(program.values, &ProgramValue::has_gradient));
  ProgramEffects effects(program);
  for (const Operation& operation : program.operations) {
    for (const InstanceEffect& effect : effects.of(operation)) {
      if (effect.instance.resource != Resource::value_gradient) continue;
      const ProgramValue& value = program.values.at(static_cast<std::size_t>(effect.instance.owner));
      EXPECT_TRUE(value.has_gradient()) << value.name;
    }
  }
}

/// A recomputed block takes its inputs again, so no row travels twice.
TEST(ExpertPrograms, RecomputationExchangesNothing) {
  RankOptions options = small_options(2);
  const auto exchanges = [&] {
    const StepProgram program = of_four(options).at(0);
    return std::ranges::count(program.operations, Lane::exchange, &Operation::lane);
  };
  const auto plain = exchanges();
  options.recompute.mode = RecomputeMode::full;
  EXPECT_EQ(exchanges(), plain);
  EXPECT_EQ(plain, 2 * 2 * 4);  // micro-batches, layers, operations
  const StepProgram program = of_four(options).at(0);
  EXPECT_EQ(std::ranges::count(program.operations, OpKind::recompute, &Operation::kind),
            2 * 2 * 3);  // no join
}

/// The order of collectives with experts: a unit that a later block of the layer uses is gathered ahead like any other.
TEST(ExpertPrograms, UnitsOfTheBlocksOfALayerAreGatheredAheadOneByOne) {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  const StepProgram program = of_four(options).at(0);
  const std::size_t router = find(program, {OpKind::forward, -1, kRouterBlock});
  const std::size_t experts = find(program, {OpKind::forward, -1, kExpertsBlock});
  EXPECT_LT(find(program, {OpKind::gather_start, kExpertUnit}), router);
  const std::size_t next_layer = find(program, {OpKind::gather_start, 3});
  EXPECT_GT(next_layer, router);
  EXPECT_LT(next_layer, experts);
}

}  // namespace
}  // namespace stepforge::testing
