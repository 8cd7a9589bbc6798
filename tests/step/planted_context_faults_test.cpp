// SPDX-License-Identifier: Apache-2.0
// Faults planted into the programs of eight ranks with sharding, context and tensor parallelism. Each must be
// refused.
#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

/// Ranks 0 to 7 of dp_shard 2 x cp 2 x tp 2. Every block sums over tp, every layer exchanges over cp.
Programs divided_by_tokens(const RankOptions& options) {
  ModelSpec model = small_model();
  for (BlockSpec& block : model.blocks) {
    add_exchanges(block, BlockAxis::tensor, 8, 8);
    if (block.kind == BlockKind::layer) add_exchanges(block, BlockAxis::context, 16, 32);
  }
  Programs programs;
  for (int rank = 0; rank < 8; ++rank) {
    RankOptions of_rank = options;
    of_rank.plan.dims = {.dp_shard = 2, .cp = 2, .tp = 2};
    of_rank.rank = {rank, 8};
    programs.push_back(build_step(model, of_rank));
  }
  return programs;
}

constexpr std::size_t kTensor = 0;
constexpr std::size_t kContext = 1;

std::vector<Fault> context_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  RankOptions recomputed = plain;
  recomputed.recompute.mode = RecomputeMode::full;
  const auto exchange = [](StepProgram& p, K kind, int block, std::size_t axis) -> GroupExchange& {
    return at(p, {kind, -1, block, 0}).exchanges.at(axis);
  };
  return {
      {"AForwardDoesNotSeeTheOtherTokens", divided_by_tokens, plain, kEveryRank,
       [=](StepProgram& p) { exchange(p, K::forward, 1, kContext).group = -1; }, 0, "forward layers.0 m0",
       "it runs over no group, but the layers of block layers.0 are divided over cp {0, 2}"},
      {"ABackwardForgetsTheGradientsOfOtherTokens", divided_by_tokens, plain, 5,
       [=](StepProgram& p) { exchange(p, K::backward, 2, kContext).group = -1; }, 5, "backward layers.1 m0",
       "are divided over cp {5, 7}"},
      {"ARecomputationDoesNotSeeTheOtherTokens", divided_by_tokens, recomputed, kEveryRank,
       [=](StepProgram& p) { exchange(p, K::recompute, 1, kContext).group = -1; }, 0, "recompute layers.0 m0",
       "are divided over cp {0, 2}"},
      {"OneRankExchangesOverTheShards", divided_by_tokens, plain, 3,
       [=](StepProgram& p) { exchange(p, K::forward, 1, kContext).group = group_of(p, kShardGroup); }, 3,
       "forward layers.0 m0", "it runs over fsdp {1, 3, 5, 7}"},
      {"TheAxesAreCrossed", divided_by_tokens, plain, kEveryRank,
       [=](StepProgram& p) {
         std::swap(exchange(p, K::forward, 1, kContext).group, exchange(p, K::forward, 1, kTensor).group);
       },
       0, "forward layers.0 m0",
       "it runs over cp {0, 2}, but the layers of block layers.0 are divided over tp {0, 1}"},
      {"TheHeadExchangesTokens", divided_by_tokens, plain, kEveryRank,
       [=](StepProgram& p) {
         exchange(p, K::loss_forward_backward, 3, kContext) = {group_of(p, kContextGroup), 64};
       },
       0, "loss_forward_backward head m0",
       "it runs over cp {0, 2}, but the layers of block head are divided over no group"},
      {"ABlockIsNotDividedByTokens", divided_by_tokens, plain, kEveryRank,
       [](StepProgram& p) { p.blocks[2].groups.at(kContext) = -1; }, 0, "forward layers.1 m0",
       "it runs over cp {0, 2}, but the layers of block layers.1 are divided over no group"},
      {"OneRankExchangesFewerBytes", divided_by_tokens, plain, 2,
       [=](StepProgram& p) { exchange(p, K::forward, 1, kContext).bytes /= 2; }, 2, "forward layers.0 m0",
       "bytes, but rank 0"},
      {"OneRankReturnsFewerGradients", divided_by_tokens, plain, 7,
       [=](StepProgram& p) { exchange(p, K::backward, 1, kContext).bytes -= 4; }, 7, "backward layers.0 m0",
       "bytes, but rank 5"},
      {"OneRankIsInAnotherContextGroup", divided_by_tokens, plain, 2,
       [](StepProgram& p) { p.groups[static_cast<std::size_t>(group_of(p, kContextGroup))].ranks = {2, 4}; },
       0, "forward layers.0 m0", "rank 2 is a member of cp {0, 2} here, but has no such group itself"},
      {"GradientsAreSummedOverTheTokensOfOneRowOnly", divided_by_tokens, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).group = group_of(p, kContextGroup); }, 0,
       "reduce_start layers.0", "it runs over cp {0, 2}, but must run over fsdp {0, 2, 4, 6}"},
      {"TheNormIsOfOneRowsRanksOnly", divided_by_tokens, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::gradient_norm}).group = group_of(p, kContextGroup); }, 0,
       "gradient_norm", "fsdp {0, 2, 4, 6}"},
      {"TheLossIsOfOneRowOnly", divided_by_tokens, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_loss}).group = group_of(p, kContextGroup); }, 0, "reduce_loss",
       "it runs over cp {0, 2}, but must run over loss {0, 2, 4, 6}"},
      {"LabelsAreCountedOverOneRowOnly", divided_by_tokens, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::count_labels}).group = group_of(p, kContextGroup); }, 0, "count_labels",
       "it runs over cp {0, 2}, but must run over world {0, 1, 2, 3, 4, 5, 6, 7}"},
      {"WeightsAreGatheredFromOneRowsRanksOnly", divided_by_tokens, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::gather_start, 1}).group = group_of(p, kContextGroup); }, 0,
       "gather_start layers.0", "it runs over cp {0, 2}, but must run over fsdp {0, 2, 4, 6}"},
  };
}

class PlantedContextFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedContextFault, IsFound) {
  expect_found(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedContextFault, ::testing::ValuesIn(context_faults()),
                         [](const auto& fault) { return fault.param.name; });

}  // namespace
}  // namespace stepforge::testing
