// SPDX-License-Identifier: Apache-2.0
// Faults planted in programs of tensor parallelism: the checker finds each.
#include <vector>

#include <gtest/gtest.h>

#include "tests/step/planted_fault.h"

namespace stepforge::testing {
namespace {

/// Two shards of two parts: shard groups {0, 2} and {1, 3}, tensor groups {0, 1} and {2, 3}.
Programs divided(const RankOptions& options) {
  ModelSpec model = small_model();
  for (BlockSpec& block : model.blocks) add_exchanges(block, BlockAxis::tensor, 8, 8);
  Programs programs;
  for (int rank = 0; rank < 4; ++rank) {
    RankOptions of_rank = options;
    of_rank.plan.dims = {.dp_shard = 2, .tp = 2};
    of_rank.rank = {rank, 4};
    programs.push_back(build_step(model, of_rank));
  }
  return programs;
}

std::vector<Fault> tensor_faults() {
  using K = OpKind;
  const RankOptions plain = two_micro_batches();
  RankOptions recomputed = plain;
  recomputed.recompute.mode = RecomputeMode::full;
  return {
      {"TheNormIsOfOnePartOnly", divided, plain, kEveryRank,
       [](StepProgram& p) { erase(p, find(p, {K::join_norm})); }, 0, "check_finite",
       "the norm of the parts of tensors has not been joined"},
      {"TheNormIsJoinedOverTheShards", divided, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::join_norm}).group = group_of(p, kShardGroup); }, 0, "join_norm",
       "it runs over fsdp {0, 2}, but must run over tp {0, 1}"},
      {"TheNormIsJoinedTwice", divided, plain, kEveryRank,
       [](StepProgram& p) { repeat(p, find(p, {K::join_norm})); }, 0, "join_norm", "already joined"},
      {"TheNormIsJoinedBeforeItIsComputed", divided, plain, kEveryRank,
       [](StepProgram& p) { move(p, find(p, {K::join_norm}), find(p, {K::gradient_norm})); }, 0, "join_norm",
       "the gradient norm has not been computed"},
      {"OneRankSumsOverTheWrongGroup", divided, plain, 1,
       [](StepProgram& p) { at(p, {K::forward, -1, 1, 0}).exchanges[0].group = group_of(p, kShardGroup); }, 1,
       "forward layers.0 m0",
       "it runs over fsdp {1, 3}, but the layers of block layers.0 are divided over tp {0, 1}"},
      {"AForwardForgetsItsSums", divided, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::forward, -1, 0, 1}).exchanges[0].group = -1; }, 0,
       "forward embedding m1",
       "it runs over no group, but the layers of block embedding are divided over tp {0, 1}"},
      {"ABackwardForgetsItsSums", divided, plain, 3,
       [](StepProgram& p) { at(p, {K::backward, -1, 2, 1}).exchanges[0].group = -1; }, 3,
       "backward layers.1 m1", "are divided over tp {2, 3}"},
      {"ARecomputationForgetsItsSums", divided, recomputed, kEveryRank,
       [](StepProgram& p) { at(p, {K::recompute, -1, 1, 0}).exchanges[0].group = -1; }, 0,
       "recompute layers.0 m0", "are divided over tp {0, 1}"},
      {"TheLossForgetsItsSums", divided, plain, 0,
       [](StepProgram& p) { at(p, {K::loss_forward_backward, -1, 3, 0}).exchanges[0].group = -1; }, 0,
       "loss_forward_backward head m0", "are divided over tp {0, 1}"},
      {"ABlockThatIsNotDividedSums", divided, plain, kEveryRank,
       [](StepProgram& p) { p.blocks[1].groups[0] = -1; }, 0, "forward layers.0 m0",
       "it runs over tp {0, 1}, but the layers of block layers.0 are divided over no group"},
      {"OneRankSumsFewerBytes", divided, plain, 1,
       [](StepProgram& p) { at(p, {K::backward, -1, 1, 0}).exchanges[0].bytes /= 2; }, 1,
       "backward layers.0 m0", "bytes, but rank 0"},
      {"OneRankRecomputesFewerSums", divided, recomputed, 1,
       [](StepProgram& p) { at(p, {K::recompute, -1, 1, 0}).exchanges[0].bytes /= 2; }, 1,
       "recompute layers.0 m0", "bytes, but rank 0"},
      {"MoreBytesMoveBesideTheComputationThanItExchanges", divided, plain, kEveryRank,
       [](StepProgram& p) {
         Operation& forward = at(p, {K::forward, -1, 1, 0});
         forward.beside = forward.exchanges[0].bytes + 1;
       },
       0, "forward layers.0 m0", "bytes move while it computes, but its exchanges have"},
      {"LabelsAreCountedOverSomeRanksOnly", divided, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::count_labels}).group = group_of(p, kLossGroup); }, 0, "count_labels",
       "it runs over loss {0, 2}, but must run over world {0, 1, 2, 3}"},
      {"TheLossIsSummedOverItsParts", divided, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_loss}).group = group_of(p, kTensorGroup); }, 0, "reduce_loss",
       "it runs over tp {0, 1}, but must run over loss {0, 2}"},
      {"GradientsAreReducedOverTheParts", divided, plain, kEveryRank,
       [](StepProgram& p) { at(p, {K::reduce_start, 1}).group = group_of(p, kTensorGroup); }, 0,
       "reduce_start layers.0", "it runs over tp {0, 1}, but must run over fsdp {0, 2}"},
      {"OneRankIsInAnotherTensorGroup", divided, plain, 1,
       [](StepProgram& p) { p.groups[static_cast<std::size_t>(group_of(p, kTensorGroup))].ranks = {1, 2}; },
       0, "forward embedding m0", "rank 1 is a member of tp {0, 1} here, but has no such group itself"},
  };
}

class PlantedTensorFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedTensorFault, IsFound) {
  expect_found(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedTensorFault, ::testing::ValuesIn(tensor_faults()),
                         [](const auto& fault) { return fault.param.name; });

}  // namespace
}  // namespace stepforge::testing
