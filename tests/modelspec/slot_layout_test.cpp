// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/slot_layout.h"

#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/format.h"

namespace stepforge::testing {
namespace {

UnitSpec slotted_unit(const std::vector<std::vector<int64_t>>& shapes) {
  UnitSpec unit{.name = "unit", .parameters = {}};
  for (const auto& shape : shapes) {
    unit.parameters.push_back(
        {.name = format("p{}", unit.parameters.size()), .shape = shape, .sub_tensors = {}});
  }
  return unit;
}

const std::vector<std::vector<int64_t>> kSlottedShapes = {{7}, {30, 50}, {9, 200}, {3}, {400, 5}};

TEST(SlotLayout, ASlotOfAllParametersIsLaidOutAsTheShard) {
  const UnitSpec unit = slotted_unit(kSlottedShapes);
  for (const Partition::Kind kind :
       {Partition::Kind::flat, Partition::Kind::by_tensor, Partition::Kind::by_dim}) {
    const ShardLayout shards(unit, {kind}, 8);
    const SlotLayout slots(shards, {2, 2, 2, 2, 2});
    EXPECT_EQ(slots.slots(), 2);
    EXPECT_EQ(slots.elements(), 2 * shards.shard_size());
    for (int rank = 0; rank < 8; ++rank)
      for (size_t i = 0; i < kSlottedShapes.size(); ++i) EXPECT_EQ(slots.shift(rank, 1, i), 0);
  }
}

TEST(SlotLayout, ParametersWithoutASlotTakeNoMemoryInIt) {
  const ShardLayout whole(slotted_unit(kSlottedShapes), {Partition::Kind::flat}, 1);
  const SlotLayout slots(whole, {2, 1, 1, 2, 0});
  EXPECT_LT(slots.size(1), 2 * 256 + 1);  // two small tensors, each padded
  EXPECT_LT(slots.size(0), whole.shard_size());
  EXPECT_EQ(SlotLayout(whole, {0, 0, 0, 0, 0}).elements(), 0);
}

TEST(SlotLayout, EveryElementOfAParameterWithASlotHasAPlaceOfItsOwn) {
  const UnitSpec unit = slotted_unit(kSlottedShapes);
  const std::vector<int> counts = {2, 1, 0, 2, 1};
  for (const Partition::Kind kind :
       {Partition::Kind::flat, Partition::Kind::by_tensor, Partition::Kind::by_dim}) {
    for (const int ranks : {1, 2, 3}) {
      const ShardLayout shards(unit, {kind}, ranks);
      const SlotLayout slots(shards, counts);
      for (int rank = 0; rank < ranks; ++rank) {
        for (int slot = 0; slot < 2; ++slot) {
          std::set<int64_t> places;
          for (size_t i = 0; i < counts.size(); ++i) {
            if (counts[i] <= slot) continue;
            for (const ShardSlice& held : shards.slices(rank, i)) {
              for (int64_t e = 0; e < held.elements(); ++e)
                EXPECT_TRUE(places.insert(held.local + e - slots.shift(rank, slot, i)).second);
            }
          }
          if (places.empty()) continue;
          EXPECT_GE(*places.begin(), 0);
          EXPECT_LT(*places.rbegin(), slots.size(slot));
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
