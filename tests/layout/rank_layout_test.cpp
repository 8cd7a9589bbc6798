// SPDX-License-Identifier: Apache-2.0
#include "stepforge/layout/rank_layout.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Ranks = std::vector<int>;

const std::vector<UnitSpec> kUnits = {{"first", {}, true}, {"second", {}, true}};

RankLayout layout_of(ParallelDims dims, RankId rank) {
  return rank_layout(kUnits, {.dims = dims}, rank);
}

Ranks ranks_of(const RankLayout& layout, std::string_view axis) {
  const int group = layout.find(axis);
  return group < 0 ? Ranks{layout.id.rank} : layout.groups.at(static_cast<size_t>(group)).ranks;
}

TEST(RankLayout, ShardRanksAreNeighboursAndReplicaRanksAreNot) {
  const RankLayout layout = layout_of({.dp_replicate = 2}, {5, 8});
  EXPECT_EQ(ranks_of(layout, kShardGroup), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(ranks_of(layout, kReplicaGroup), (Ranks{1, 5}));
  EXPECT_EQ(ranks_of(layout, kLossGroup), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(layout.index_in(layout.find(kShardGroup)), 1);
  EXPECT_EQ(layout.index_in(layout.find(kReplicaGroup)), 1);
  EXPECT_EQ(layout.size_of(layout.find(kShardGroup)), 4);
}

TEST(RankLayout, SpreadExpertsAreShardedOverTheRanksWithTheSameExperts) {
  const std::vector<UnitSpec> units = {{"dense", {}},
                                       {.name = "experts", .parameters = {}, .mesh = UnitMesh::experts}};
  const RankLayout layout = rank_layout(units, {.dims = {.dp_replicate = 2, .ep = 2}}, {5, 8});
  EXPECT_EQ(ranks_of(layout, kExpertGroup), (Ranks{4, 5}));
  EXPECT_EQ(ranks_of(layout, kExpertShardGroup), (Ranks{5, 7}));
  EXPECT_EQ(layout.expert_group, layout.find(kExpertGroup));
  EXPECT_EQ(layout.units[0].shard_group, layout.find(kShardGroup));
  EXPECT_EQ(layout.units[1].shard_group, layout.find(kExpertShardGroup));
  const std::vector<ReductionStep> expected = {
      {CollectiveKind::reduce_scatter, layout.find(kExpertShardGroup)},
      {CollectiveKind::all_reduce, layout.find(kReplicaGroup)}};
  EXPECT_EQ(layout.units[1].reductions, expected);
}

TEST(RankLayout, SpreadExpertsOfWhichEachRankHasItsOwnAreNotReduced) {
  const std::vector<UnitSpec> units = {{.name = "experts", .parameters = {}, .mesh = UnitMesh::experts}};
  const RankLayout layout = rank_layout(units, {.dims = {.ep = 4}}, {1, 4});
  EXPECT_EQ(layout.find(kExpertShardGroup), -1);
  EXPECT_EQ(layout.units[0].shard_group, -1);
  EXPECT_TRUE(layout.units[0].reductions.empty());
}

/// Experts see each rank of tensor parallelism as one more that has other tokens.
TEST(RankLayout, UnitsThatTakeSlicesAreShardedOverTensorParallelRanksToo) {
  const ParameterSpec whole{"router", {4, 4}, {{"weight", "router", 4, {}}}};
  const std::vector<UnitSpec> units = {{"dense", {whole}},
                                       {.name = "slices", .parameters = {whole}, .mesh = UnitMesh::slices},
                                       {.name = "experts", .parameters = {whole}, .mesh = UnitMesh::experts}};
  const RankLayout layout =
      rank_layout(units, {.dims = {.dp_replicate = 2, .dp_shard = 2, .tp = 2, .ep = 2}}, {5, 8});
  EXPECT_EQ(ranks_of(layout, kShardGroup), (Ranks{5, 7}));
  EXPECT_EQ(ranks_of(layout, kSliceShardGroup), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(ranks_of(layout, kExpertGroup), (Ranks{4, 5}));
  EXPECT_EQ(ranks_of(layout, kExpertShardGroup), (Ranks{5, 7}));
  EXPECT_EQ(layout.units[1].shard_group, layout.find(kSliceShardGroup));
  const std::vector<ReductionStep> expected = {
      {CollectiveKind::reduce_scatter, layout.find(kSliceShardGroup)},
      {CollectiveKind::all_reduce, layout.find(kReplicaGroup)}};
  EXPECT_EQ(layout.units[1].reductions, expected);
  EXPECT_FALSE(layout.units[0].counts(0));
  EXPECT_TRUE(layout.units[1].counts(0)) << "the shards of the ranks differ";
  EXPECT_TRUE(layout.units[2].counts(0));
  EXPECT_EQ(layout_of({.dp_shard = 2, .tp = 2}, {1, 4}).find(kSliceShardGroup), -1);
}

TEST(RankLayout, TokensAreCountedOverAllRanksWithTheSameLayers) {
  const std::vector<UnitSpec> state = {
      {.name = "state", .parameters = {}, .trainable = false, .state = true}};
  const auto counted_over = [&](ParallelDims dims, RankId rank) {
    const RankLayout layout = rank_layout(state, {.dims = dims}, rank);
    const int group = stage_group(layout.groups);
    return group < 0 ? Ranks{} : layout.groups.at(static_cast<size_t>(group)).ranks;
  };
  EXPECT_EQ(counted_over({}, {0, 1}), Ranks{});
  EXPECT_EQ(counted_over({.dp_replicate = 2}, {1, 4}), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(counted_over({.tp = 2}, {1, 4}), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(counted_over({.pp = 2}, {1, 4}), (Ranks{0, 1}));
  EXPECT_EQ(counted_over({.dp_shard = 1, .tp = 2, .pp = 2}, {3, 4}), (Ranks{2, 3}));
  EXPECT_EQ(counted_over({.tp = 2, .pp = 2}, {5, 8}), (Ranks{4, 5, 6, 7}));
}

TEST(RankLayout, StateOfABlockIsReplicatedAndSavedByTheFirstShardOfEachReplica) {
  const std::vector<UnitSpec> units = {
      {.name = "state", .parameters = {{"correction", {4}, {}}}, .trainable = false, .state = true}};
  for (int rank = 0; rank < 8; ++rank) {
    const RankLayout layout =
        rank_layout(units, {.dims = {.dp_replicate = 2}, .gather = DType::bf16}, {rank, 8});
    EXPECT_EQ(layout.units[0].shard_group, -1);
    EXPECT_EQ(layout.units[0].gather, DType::f32);
    EXPECT_EQ(layout.units[0].counts(0), rank % 4 == 0) << rank;
  }
}

TEST(RankLayout, ASingleRankHasNoGroups) {
  const RankLayout layout = layout_of({}, {});
  EXPECT_TRUE(layout.groups.empty());
  EXPECT_EQ(layout.loss_group, -1);
  EXPECT_EQ(layout.size_of(layout.loss_group), 1);
  EXPECT_EQ(layout.index_in(layout.loss_group), 0);
  for (const UnitLayout& unit : layout.units) {
    EXPECT_EQ(unit.shard_group, -1);
    EXPECT_TRUE(unit.reductions.empty());
    EXPECT_EQ(unit.replica_group(), -1);
  }
}

TEST(RankLayout, GradientsAreReduceScatteredOverShardsAndThenSummedOverReplicas) {
  const RankLayout layout = layout_of({.dp_replicate = 2}, {0, 4});
  ASSERT_EQ(layout.units.size(), kUnits.size());
  const std::vector<ReductionStep> expected = {{CollectiveKind::reduce_scatter, layout.find(kShardGroup)},
                                               {CollectiveKind::all_reduce, layout.find(kReplicaGroup)}};
  for (const UnitLayout& unit : layout.units) {
    EXPECT_EQ(unit.reductions, expected);
    EXPECT_EQ(unit.replica_group(), layout.find(kReplicaGroup));
  }
  const RankLayout replicated = layout_of({.dp_replicate = 4, .dp_shard = 1}, {0, 4});
  EXPECT_EQ(replicated.units[0].shard_group, -1);
  EXPECT_EQ(replicated.units[0].reductions,
            (std::vector<ReductionStep>{{CollectiveKind::all_reduce, replicated.find(kReplicaGroup)}}));
}

TEST(RankLayout, AReplicatedUnitIsWholeAndSummedOverAllRanks) {
  const RankLayout layout = layout_of({.dp_replicate = 2}, {0, 4});
  const UnitLayout unit = replicated_unit(layout, {.gather = DType::bf16}, {});
  EXPECT_EQ(unit.shard_group, -1);
  EXPECT_EQ(unit.gather, DType::bf16);
  EXPECT_EQ(unit.reductions,
            (std::vector<ReductionStep>{{CollectiveKind::all_reduce, layout.find(kLossGroup)}}));
  EXPECT_TRUE(replicated_unit(layout_of({}, {}), {}, {}).reductions.empty());
}

/// Ranks of one tensor- or context-parallel group read the same rows, whatever losses they sum.
TEST(RankLayout, TheDataRankIsThePlaceAmongRanksThatReadDifferentRows) {
  for (int rank = 0; rank < 16; ++rank) {
    const RankLayout layout = layout_of({.dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2}, {rank, 16});
    EXPECT_EQ(layout.data_ranks, 4);
    EXPECT_EQ(layout.data_rank, rank / 4);
  }
}

TEST(RankLayout, NeighboursHoldTheOtherPartsOfDividedTensors) {
  const RankLayout layout = layout_of({.dp_shard = 2, .tp = 2}, {2, 4});
  EXPECT_EQ(ranks_of(layout, kTensorGroup), (Ranks{2, 3}));
  EXPECT_EQ(ranks_of(layout, kShardGroup), (Ranks{0, 2}));
  EXPECT_EQ(ranks_of(layout, kLossGroup), (Ranks{0, 2}));
  EXPECT_EQ(ranks_of(layout, kWorldGroup), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(layout.world_group, layout.find(kWorldGroup));
  EXPECT_EQ(layout.units[0].shard_group, layout.find(kShardGroup));
}

TEST(RankLayout, PartsOfRowsAreFoldedIntoTheShards) {
  const RankLayout layout = layout_of({.dp_shard = 2, .cp = 2, .tp = 2}, {3, 8});
  EXPECT_EQ(ranks_of(layout, kContextGroup), (Ranks{1, 3}));
  EXPECT_EQ(layout.context_group, layout.find(kContextGroup));
  EXPECT_EQ(layout.index_in(layout.context_group), 1);
  EXPECT_EQ(ranks_of(layout, kShardGroup), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(ranks_of(layout, kLossGroup), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(layout.data_ranks, 2);
  EXPECT_EQ(layout.units[0].shard_group, layout.find(kShardGroup));
}

TEST(RankLayout, EachStageOfAttentionHasItsGroup) {
  const RankLayout ring = layout_of({.dp_shard = 1, .cp = 4}, {1, 4});
  EXPECT_EQ(ring.keys_group, ring.find("cp"));
  EXPECT_EQ(ring.heads_group, -1);
  const RankLayout ulysses = layout_of({.dp_shard = 1, .cp = 4, .cp_heads = 4}, {1, 4});
  EXPECT_EQ(ulysses.keys_group, -1);
  EXPECT_EQ(ulysses.heads_group, ulysses.find("cp"));
  const RankLayout hybrid = layout_of({.dp_shard = 1, .cp = 4, .cp_heads = 2}, {1, 4});
  EXPECT_EQ(hybrid.heads_group, hybrid.find(kHeadsGroup));
  EXPECT_EQ(hybrid.keys_group, hybrid.find(kRingGroup));
  EXPECT_EQ(ranks_of(hybrid, kHeadsGroup), (Ranks{0, 1}));
  EXPECT_EQ(ranks_of(hybrid, kRingGroup), (Ranks{1, 3}));
}

TEST(RankLayout, TheLossGroupIsTheWorldIfItHasAllRanks) {
  const RankLayout layout = layout_of({.dp_shard = 4}, {2, 4});
  EXPECT_EQ(layout.find(kWorldGroup), -1);
  EXPECT_EQ(layout.world_group, layout.loss_group);
  const RankLayout tensor = layout_of({.dp_shard = 1, .tp = 4}, {2, 4});
  EXPECT_EQ(tensor.loss_group, -1);
  EXPECT_EQ(ranks_of(tensor, kWorldGroup), (Ranks{0, 1, 2, 3}));
}

TEST(RankLayout, AParameterThatAllPartsHoldCountsOnTheFirstOnly) {
  const ParameterSpec whole{"norm", {4}, {{"weight", "norm", 4, {}}}, ParameterTag::norm};
  ParameterSpec part = whole;
  part.sub_tensors[0].offsets = {4};
  part.sub_tensors[0].tensor_shape = {8};
  const auto counted = [&](int rank) {
    return rank_layout({{"unit", {whole, part}}}, {.dims = {.dp_shard = 2, .tp = 2}}, {rank, 4})
        .units[0]
        .counted;
  };
  EXPECT_EQ(counted(0), (std::vector<bool>{true, true}));
  EXPECT_EQ(counted(1), (std::vector<bool>{false, true}));
  EXPECT_EQ(counted(2), (std::vector<bool>{true, true}));
  EXPECT_EQ(counted(3), (std::vector<bool>{false, true}));
}

TEST(RankLayout, StagesOfAPipelineShareATieAndCountItsUnitOnce) {
  const std::vector<UnitSpec> specs = {
      {"embedding", {ParameterSpec{"w", {4, 4}, {{"weight", "w", 4, {}}}}}, true}};
  const ParallelPlan plan{
      .dims = {.dp_shard = 2, .pp = 3}, .tied = {"embedding", 0, 2}, .units = {"other", "embedding"}};
  const RankLayout owner = rank_layout(specs, plan, {1, 6});
  EXPECT_EQ(owner.groups.at(static_cast<size_t>(owner.pipeline_group)).ranks, (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(owner.groups.at(static_cast<size_t>(owner.tie_group)).ranks, (std::vector<int>{1, 5}));
  EXPECT_EQ(owner.units[0].tie_group, owner.tie_group);
  EXPECT_EQ(owner.units[0].number, 1);
  EXPECT_EQ(owner.model_units, 2);
  EXPECT_TRUE(owner.units[0].counts(0));
  EXPECT_EQ(rank_layout(specs, plan, {3, 6}).tie_group, -1);
  const RankLayout copy = rank_layout(specs, plan, {5, 6});
  EXPECT_EQ(copy.units[0].tie_group, copy.tie_group);
  EXPECT_FALSE(copy.units[0].counts(0));
  // Ranks of other stages read the same rows.
  EXPECT_EQ(owner.data_ranks, 2);
  EXPECT_EQ(owner.data_rank, copy.data_rank);
}

TEST(RankLayout, RefusesDegreesThatDoNotFitTheWorld) {
  EXPECT_CONTAINS(message_of<UsageError>([] { layout_of({.dp_shard = 4}, {0, 6}); }), "for 6 ranks");
}

}  // namespace
}  // namespace stepforge::testing
