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
  const UnitLayout unit = replicated_unit(layout, {.gather = DType::bf16});
  EXPECT_EQ(unit.shard_group, -1);
  EXPECT_EQ(unit.gather, DType::bf16);
  EXPECT_EQ(unit.reductions,
            (std::vector<ReductionStep>{{CollectiveKind::all_reduce, layout.find(kLossGroup)}}));
  EXPECT_TRUE(replicated_unit(layout_of({}, {}), {}).reductions.empty());
}

/// Ranks of one tensor- or context-parallel group read the same rows, whatever losses they sum.
TEST(RankLayout, TheDataRankIsThePlaceAmongRanksThatReadDifferentRows) {
  for (int rank = 0; rank < 16; ++rank) {
    const RankLayout layout = layout_of({.dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2}, {rank, 16});
    EXPECT_EQ(layout.data_ranks, 4);
    EXPECT_EQ(layout.data_rank, rank / 4);
  }
}

TEST(RankLayout, RefusesDegreesThatDoNotFitTheWorld) {
  EXPECT_CONTAINS(message_of<UsageError>([] { layout_of({.dp_shard = 4}, {0, 6}); }), "for 6 ranks");
}

}  // namespace
}  // namespace stepforge::testing
