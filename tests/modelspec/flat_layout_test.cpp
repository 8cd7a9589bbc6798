// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/flat_layout.h"

#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

UnitSpec unit_of(const std::vector<std::vector<int64_t>>& shapes) {
  UnitSpec unit{.name = "unit", .parameters = {}};
  for (const auto& shape : shapes) {
    unit.parameters.push_back(
        {.name = format("p{}", unit.parameters.size()), .shape = shape, .sub_tensors = {}});
  }
  return unit;
}

const std::vector<std::vector<int64_t>>& odd_shapes() {
  static const std::vector<std::vector<int64_t>> shapes = {
      {1}, {3, 5}, {7, 17, 3}, {}, {1030, 2}, {2, 1, 41}, {17, 1}, {0, 4}, {5, 300}};
  return shapes;
}

std::vector<Partition> all_partitions() {
  using Kind = PartitionKind;
  return {{Kind::flat}, {Kind::by_tensor}, {Kind::by_dim, 0}, {Kind::by_dim, 1}, {Kind::by_dim, -1}};
}

TEST(FlatLayout, TensorsAndTheEndOfTheUnitAreAligned) {
  const FlatLayout layout = flat_layout(unit_of({{3}, {300}, {256}, {1}}));
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 256, 768, 1024}));
  EXPECT_EQ(layout.size, 2048);
}

TEST(FlatLayout, AnExactFitAddsNoPadding) {
  EXPECT_EQ(flat_layout(unit_of({{4, 256}})).size, 1024);
  EXPECT_EQ(flat_layout(UnitSpec{}).size, 0);
}

TEST(ShardLayout, EveryElementIsOnExactlyOneRank) {
  const UnitSpec unit = unit_of(odd_shapes());
  for (const Partition& partition : all_partitions()) {
    for (const int shards : {1, 2, 3, 4, 8}) {
      const ShardLayout layout(unit, partition, shards);
      EXPECT_EQ(layout.shard_size() % kUnitAlignment, 0);
      for (size_t i = 0; i < unit.parameters.size(); ++i) {
        std::vector<int> seen(static_cast<size_t>(unit.parameters[i].elements()), 0);
        for (int rank = 0; rank < shards; ++rank) {
          const ShardRange held = layout.local_range(rank, i, i + 1);
          int64_t next = held.begin;
          for (const ShardSlice& slice : layout.slices(rank, i)) {
            for (const ShardRun& run : runs_of(unit.parameters[i].shape, slice)) {
              EXPECT_EQ(run.local, next) << "runs follow one another in the shard";
              next += run.count;
              for (int64_t e = 0; e < run.count; ++e) ++seen.at(static_cast<size_t>(run.element + e));
            }
          }
          EXPECT_EQ(next, held.end);
          EXPECT_LE(held.end, layout.shard_size());
        }
        for (const int times : seen)
          ASSERT_EQ(times, 1) << partition_text(partition) << ", " << shards << " shards, p" << i;
      }
    }
  }
}

TEST(ShardLayout, PartsOfParametersDoNotOverlapAndKeepTheirOrder) {
  const UnitSpec unit = unit_of(odd_shapes());
  for (const Partition& partition : all_partitions()) {
    const ShardLayout layout(unit, partition, 3);
    for (int rank = 0; rank < 3; ++rank) {
      int64_t end = 0;
      for (size_t i = 0; i < unit.parameters.size(); ++i) {
        const ShardRange held = layout.local_range(rank, i, i + 1);
        if (held.size() == 0) continue;
        EXPECT_GE(held.begin, end) << partition_text(partition);
        end = held.end;
      }
      EXPECT_EQ(layout.local_range(rank, 0, unit.parameters.size()).end, end);
    }
  }
}

TEST(ShardLayout, ConcatenatedShardsAreTheGatheredCopyExceptByDim) {
  const UnitSpec unit = unit_of(odd_shapes());
  for (const Partition& partition : all_partitions()) {
    const ShardLayout layout(unit, partition, 4);
    if (!layout.joined_is_gathered()) continue;
    EXPECT_EQ(layout.gathered().size, layout.joined_size());
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      for (int rank = 0; rank < 4; ++rank) {
        for (const ShardSlice& slice : layout.slices(rank, i)) {
          for (const ShardRun& run : runs_of(unit.parameters[i].shape, slice)) {
            EXPECT_EQ(rank * layout.shard_size() + run.local, layout.gathered().offsets[i] + run.element);
          }
        }
      }
    }
  }
}

TEST(ShardLayout, ASingleShardIsTheFlatUnit) {
  const UnitSpec unit = unit_of(odd_shapes());
  for (const Partition& partition : all_partitions()) {
    const ShardLayout layout(unit, partition, 1);
    EXPECT_EQ(layout.shard_size(), flat_layout(unit).size);
    EXPECT_EQ(layout.gathered().offsets, flat_layout(unit).offsets);
  }
}

TEST(ShardLayout, WholeTensorsAreBalanced) {
  const ShardLayout layout(unit_of({{1024}, {1024}, {4096}, {2048}}), {PartitionKind::by_tensor}, 2);
  EXPECT_EQ(layout.shard_size(), 4096);
  EXPECT_EQ(layout.slices(0, 2).size() + layout.slices(1, 2).size(), 1U);
}

TEST(ShardLayout, AnIntervalThatSplitsRowsIsThreeSlices) {
  const UnitSpec unit = unit_of({{1000, 7}});
  const ShardLayout interval(unit, {}, 4);
  // 2,048 elements a shard; the second one starts and ends inside a row of 7.
  const std::vector<ShardSlice> slices = interval.slices(1, 0);
  ASSERT_EQ(slices.size(), 3U);
  EXPECT_EQ(slices[0], (ShardSlice{{{292, 4}, {1, 3}}, 0}));
  EXPECT_EQ(slices[1], (ShardSlice{{{293, 0}, {292, 7}}, 3}));
  EXPECT_EQ(slices[2], (ShardSlice{{{585, 0}, {1, 1}}, 2047}));
  const ShardLayout columns(unit, {PartitionKind::by_dim, 1}, 4);
  EXPECT_EQ(columns.slices(3, 0), (std::vector<ShardSlice>{{{{0, 6}, {1000, 1}}, 0}}));
}

TEST(ShardLayout, SlicesOfRowsCoverTheRows) {
  const UnitSpec unit = unit_of({{12, 5}});
  for (const Partition& partition : all_partitions()) {
    const ShardLayout layout(unit, partition, 2);
    std::vector<int> seen(60, 0);
    for (const auto& [begin, end] : {std::pair{0, 5}, std::pair{5, 6}, std::pair{6, 12}}) {
      for (int rank = 0; rank < 2; ++rank) {
        for (const ShardSlice& slice : layout.slices(rank, 0, begin, end)) {
          for (const ShardRun& run : runs_of({end - begin, 5}, slice)) {
            for (int64_t e = 0; e < run.count; ++e)
              ++seen.at(static_cast<size_t>(begin * 5 + run.element + e));
          }
        }
      }
    }
    for (const int times : seen) EXPECT_EQ(times, 1) << partition_text(partition);
  }
}

TEST(ShardLayout, ZeroShardsAreRefused) {
  EXPECT_CONTAINS(message_of<UsageError>([] { ShardLayout(unit_of({{3}}), {}, 0); }),
                  "unit cannot be split into 0 shards");
}

}  // namespace
}  // namespace stepforge::testing
