// SPDX-License-Identifier: Apache-2.0
#include "stepforge/layout/parallel_dims.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using Ranks = std::vector<int>;

/// The error message; "" if the degrees are accepted.
std::string refusal_of(const ParallelDims& dims, int world_size) {
  try {
    resolve_dims(dims, world_size);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(MeshText, NamesTheAxesWithSeveralRanks) {
  EXPECT_EQ(mesh_text({.dp_shard = 1}), "1 rank");
  EXPECT_EQ(mesh_text({.dp_replicate = 2, .dp_shard = 1, .cp = 4, .tp = 8}), "dp_replicate 2 x cp 4 x tp 8");
}

TEST(ParallelDims, OneDegreeTakesTheRemainingRanks) {
  EXPECT_EQ(resolve_dims({}, 8), (ParallelDims{1, 8, 1, 1, 1, 1}));
  EXPECT_EQ(resolve_dims({.dp_replicate = 2}, 8), (ParallelDims{2, 4, 1, 1, 1, 1}));
  EXPECT_EQ(resolve_dims({2, -1, 3, 2, 2, 1}, 48), (ParallelDims{2, 2, 3, 2, 2, 1}));
  EXPECT_EQ(resolve_dims({-1, 2, 1, 1, 1, 1}, 8), (ParallelDims{4, 2, 1, 1, 1, 1}));
  EXPECT_EQ(resolve_dims({1, 1, -1, 1, 1, 1}, 8), (ParallelDims{1, 1, 8, 1, 1, 1}));
  EXPECT_EQ(resolve_dims({1, 2, 1, -1, 1, 1}, 8), (ParallelDims{1, 2, 1, 4, 1, 1}));
  EXPECT_EQ(resolve_dims({1, 2, 1, 2, -1, 1}, 8), (ParallelDims{1, 2, 1, 2, 2, 1}));
}

TEST(ParallelDims, CompleteDegreesAreKept) {
  const ParallelDims dims{2, 2, 1, 2, 1, 2};
  EXPECT_EQ(resolve_dims(dims, 8), dims);
}

TEST(ParallelDims, AProductOtherThanTheWorldSizeIsRefusedListingAllDegrees) {
  const std::string message = refusal_of({2, 3, 5, 7, 11, 1}, 8);
  for (const char* part : {"dp_replicate 2", "dp_shard 3", "cp 5", "tp 7", "pp 11", "ep 1", "8 ranks"}) {
    EXPECT_CONTAINS(message, part) << message;
  }
  EXPECT_NE(refusal_of({1, 4, 1, 1, 1, 1}, 8), "");
  EXPECT_NE(refusal_of({1, 16, 1, 1, 1, 1}, 8), "");
}

TEST(ParallelDims, DegreesThatDoNotDivideTheWorldSizeAreRefused) {
  EXPECT_CONTAINS(refusal_of({.dp_replicate = 3}, 8), "does not divide");
  EXPECT_CONTAINS(refusal_of({.tp = 16}, 8), "does not divide");
}

TEST(ParallelDims, ZeroAndNegativeDegreesAreRefusedByName) {
  EXPECT_CONTAINS(refusal_of({.dp_shard = 0}, 8), "dp_shard = 0");
  EXPECT_CONTAINS(refusal_of({.dp_shard = -2}, 8), "dp_shard = -2");
  EXPECT_CONTAINS(refusal_of({.tp = 0}, 8), "tp = 0");
  EXPECT_CONTAINS(refusal_of({.ep = 0}, 8), "ep = 0");
  EXPECT_CONTAINS(refusal_of({.ep = -1}, 8), "ep = -1");
  EXPECT_CONTAINS(refusal_of({.pp = -1}, 8), "only one degree");
  EXPECT_NE(refusal_of({}, 0), "");
}

TEST(ParallelDims, HugeDegreesAreRefusedWithoutOverflow) {
  const int64_t huge = int64_t{1} << 33;  // huge * huge is 0 in 64 bits
  EXPECT_NE(refusal_of({huge, huge, 1, 1, 1, 1}, 8), "");
  EXPECT_NE(refusal_of({huge, -1, huge, 1, 1, 1}, 8), "");
  EXPECT_NE(refusal_of({3, 6148914691236517208, 1, 1, 1, 1}, 8), "") << "their product is 8 in 64 bits";
}

TEST(ParallelDims, ExpertParallelismIsNotAFactorOfTheWorldSize) {
  EXPECT_EQ(refusal_of({1, 8, 1, 1, 1, 8}, 8), "");
  EXPECT_EQ(refusal_of({2, 2, 2, 1, 1, 4}, 8), "");
  EXPECT_CONTAINS(refusal_of({1, 8, 1, 1, 1, 3}, 8), "ep = 3");
  EXPECT_NE(refusal_of({2, 4, 1, 1, 1, 8}, 8), "") << "replicas hold the same experts";
  EXPECT_NE(refusal_of({1, 4, 1, 1, 2, 8}, 8), "") << "pipeline stages hold different layers";
}

TEST(ParallelDims, AnExpertIsDividedOverAllRanksOfATensorParallelGroupOrNone) {
  EXPECT_EQ(refusal_of({.tp = 2, .ep = 4, .etp = 2}, 8), "");
  EXPECT_EQ(refusal_of({.tp = 2, .ep = 8, .etp = 1}, 8), "");
  EXPECT_CONTAINS(refusal_of({.tp = 4, .etp = 2}, 8), "etp = 2 must be 1, or tp = 4");
  EXPECT_CONTAINS(refusal_of({.etp = 2}, 8), "etp = 2 must be 1, or tp = 1");
  EXPECT_CONTAINS(refusal_of({.tp = 2, .ep = 8, .etp = 2}, 8),
                  "with etp = 2, ep = 8 does not divide dp_shard x cp = 4");
}

TEST(Mesh, OrdersAxesFromPipelineOutermostToTensorInnermost) {
  const Mesh mesh({2, 2, 2, 2, 2, 1}, 32);
  EXPECT_EQ(mesh.group("tp", 5), (Ranks{4, 5}));
  EXPECT_EQ(mesh.group("cp", 5), (Ranks{5, 7}));
  EXPECT_EQ(mesh.group("dp_shard", 5), (Ranks{1, 5}));
  EXPECT_EQ(mesh.group("dp_replicate", 5), (Ranks{5, 13}));
  EXPECT_EQ(mesh.group("pp", 5), (Ranks{5, 21}));
}

TEST(Mesh, FlattensDataAxes) {
  const Mesh mesh({2, 2, 3, 2, 1, 1}, 24);
  EXPECT_EQ(mesh.group("dp", 1), (Ranks{1, 7, 13, 19}));
  EXPECT_EQ(mesh.group("batch", 1), mesh.group("dp", 1));
  EXPECT_EQ(mesh.group("fsdp", 1), (Ranks{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(mesh.group("loss", 1), (Ranks{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(mesh.size("world"), 24);
  const Mesh stages({2, 2, 1, 2, 2, 1}, 16);
  EXPECT_EQ(stages.group("fsdp_tp", 6), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(stages.group("stage", 9), (Ranks{8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST(Mesh, HasAxesOfSizeOne) {
  const Mesh mesh({1, 1, 1, 4, 1, 1}, 4);
  for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "dp", "fsdp", "batch", "loss", "ep"}) {
    EXPECT_EQ(mesh.group(axis, 2), (Ranks{2})) << axis;
    EXPECT_EQ(mesh.size(axis), 1) << axis;
    EXPECT_EQ(mesh.coordinate(axis, 2), 0) << axis;
  }
}

TEST(Mesh, ExpertGroupsAreWithinTheDataAxes) {
  const Mesh mesh({2, 4, 1, 2, 1, 4}, 16);
  EXPECT_EQ(mesh.group("ep", 6), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(mesh.group("efsdp", 6), (Ranks{2, 6}));
  EXPECT_EQ(mesh.group("efsdp", 14), (Ranks{10, 14}));
}

TEST(Mesh, PartsOfExpertsAreOnTheNeighboursOfATensorParallelGroup) {
  const Mesh mesh({.dp_replicate = 1, .dp_shard = 4, .tp = 2, .ep = 2, .etp = 2}, 8);
  EXPECT_EQ(mesh.group("tp", 5), (Ranks{4, 5}));
  EXPECT_EQ(mesh.group("ep", 5), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(mesh.group("efsdp", 5), (Ranks{1, 5}));
}

TEST(Mesh, EveryRankIsInExactlyOneGroupOfEachAxis) {
  const Mesh mesh({2, 3, 2, 1, 2, 6}, 24);
  for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "tp", "dp", "fsdp", "batch", "loss", "ep",
                           "efsdp", "fsdp_tp", "stage", "world"}) {
    std::map<int, Ranks> group_of;
    for (int rank = 0; rank < 24; ++rank) {
      const Ranks group = mesh.group(axis, rank);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      EXPECT_EQ(static_cast<int>(group.size()), mesh.size(axis));
      EXPECT_EQ(group[static_cast<size_t>(mesh.coordinate(axis, rank))], rank) << axis;
      for (const int member : group) {
        const auto [known, is_new] = group_of.try_emplace(member, group);
        EXPECT_EQ(known->second, group) << axis << " of rank " << member;
      }
    }
    EXPECT_EQ(group_of.size(), 24U);
  }
}

TEST(Mesh, RefusesUnknownAxesAndRanksOutsideTheWorld) {
  const Mesh mesh({1, 4, 1, 1, 1, 1}, 4);
  EXPECT_THROW(mesh.size("data"), Error);
  EXPECT_THROW(mesh.group("dp", 4), Error);
  EXPECT_THROW(mesh.coordinate("dp", -1), Error);
  EXPECT_THROW(Mesh({1, 3, 1, 1, 1, 1}, 4), UsageError);
}

/// Two groups of four, in which neighbours exchange heads.
TEST(Mesh, NeighboursThatExchangeHeadsAreInOneGroup) {
  const Mesh mesh({.dp_shard = 1, .cp = 8, .tp = 2, .cp_heads = 4}, 16);
  EXPECT_EQ(mesh.group("cp_heads", 11), (std::vector<int>{9, 11, 13, 15}));
  EXPECT_EQ(mesh.group("cp_ring", 11), (std::vector<int>{3, 11}));
  EXPECT_EQ(mesh.coordinate("cp", 11), 5);
  EXPECT_CONTAINS(message_of<UsageError>([] { Mesh({.dp_shard = 1, .cp = 8, .cp_heads = 3}, 8); }),
                  "cp_heads = 3 does not divide cp = 8");
}

}  // namespace
}  // namespace stepforge::testing
