// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/slot_layout.h"

#include <set>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/throws.h"

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

/// The first `counts[i]` of two fp32 slots for parameter i.
UnitSlots first_slots(const std::vector<int>& counts) {
  const std::vector<SlotSpec> two = {{"exp_avg"}, {"exp_avg_sq"}};
  UnitSlots slots;
  for (const int count : counts) slots.emplace_back(two.begin(), two.begin() + count);
  return slots;
}

TEST(SlotLayout, ASlotOfAllParametersIsLaidOutAsTheShard) {
  const UnitSpec unit = slotted_unit(kSlottedShapes);
  for (const PartitionKind kind : {PartitionKind::flat, PartitionKind::by_tensor, PartitionKind::by_dim}) {
    const ShardLayout shards(unit, {kind}, 8);
    const SlotLayout slots(shards, unit, adamw_slots(unit));
    EXPECT_EQ(slots.slots(), (std::vector<SlotSpec>{{"exp_avg"}, {"exp_avg_sq"}}));
    EXPECT_EQ(slots.bytes(), 4 * 2 * shards.shard_size());
    for (int rank = 0; rank < 8; ++rank)
      for (size_t i = 0; i < kSlottedShapes.size(); ++i) EXPECT_EQ(slots.place(rank, 1, i, 77), 77);
  }
}

TEST(SlotLayout, ParametersWithoutASlotTakeNoMemoryInIt) {
  const UnitSpec unit = slotted_unit(kSlottedShapes);
  const ShardLayout whole(unit, {PartitionKind::flat}, 1);
  const SlotLayout slots(whole, unit, first_slots({2, 1, 1, 2, 0}));
  EXPECT_EQ(slots.size(1), 2 * 256);  // two small tensors, each padded
  EXPECT_LT(slots.size(0), whole.shard_size());
  EXPECT_EQ(SlotLayout(whole, unit, first_slots({0, 0, 0, 0, 0})).bytes(), 0);
}

TEST(SlotLayout, SlotsOfOneNameAndSeveralTypesAreSeparate) {
  const UnitSpec unit = slotted_unit({{512}, {4, 512}, {2, 256}});
  const ShardLayout whole(unit, {PartitionKind::flat}, 1);
  const std::vector<SlotSpec> quantized = {{"exp_avg", DType::u8}, {"exp_avg_scale", DType::f32, 256}};
  const SlotLayout slots(whole, unit, {{{"exp_avg"}}, quantized, quantized});
  ASSERT_EQ(slots.slots().size(), 3U);
  EXPECT_EQ(slots.of(0), (std::vector<int>{0}));
  EXPECT_EQ(slots.of(2), (std::vector<int>{1, 2}));
  EXPECT_EQ(slots.size(1), 5 * 512);
  EXPECT_EQ(slots.size(2), 10);
  EXPECT_EQ(slots.bytes(), 4 * 512 + 5 * 512 + 64);  // ten scales, padded
  EXPECT_EQ(slots.place(0, 2, 2, 512 + 4 * 512 + 256), 9);
  EXPECT_EQ(quantized[1].shape({4, 512}), (std::vector<int64_t>{4, 2}));
}

TEST(SlotLayout, RefusesBlocksThatAreDividedOverRanksAndNamesTheParameter) {
  const UnitSpec unit = slotted_unit({{4, 384}});
  const UnitSlots slots = {{{"scale", DType::f32, 256}}};
  const ShardLayout whole(unit, {PartitionKind::flat}, 1);
  EXPECT_CONTAINS(message_of<UsageError>([&] { SlotLayout(whole, unit, slots); }), "p0", "scale", "256");
  const UnitSpec wide = slotted_unit({{4, 512}});
  const ShardLayout by_rows(wide, {PartitionKind::by_dim, 0}, 4);
  EXPECT_NO_THROW(SlotLayout(by_rows, wide, slots));
  const ShardLayout by_columns(wide, {PartitionKind::by_dim, 1}, 4);
  EXPECT_THROW(SlotLayout(by_columns, wide, slots), UsageError);
}

TEST(SlotLayout, EveryElementOfAParameterWithASlotHasAPlaceOfItsOwn) {
  const UnitSpec unit = slotted_unit(kSlottedShapes);
  const std::vector<int> counts = {2, 1, 0, 2, 1};
  for (const PartitionKind kind : {PartitionKind::flat, PartitionKind::by_tensor, PartitionKind::by_dim}) {
    for (const int ranks : {1, 2, 3}) {
      const ShardLayout shards(unit, {kind}, ranks);
      const SlotLayout slots(shards, unit, first_slots(counts));
      for (int rank = 0; rank < ranks; ++rank) {
        for (int slot = 0; slot < 2; ++slot) {
          std::set<int64_t> places;
          for (size_t i = 0; i < counts.size(); ++i) {
            if (counts[i] <= slot) continue;
            for (const ShardSlice& held : shards.slices(rank, i)) {
              for (int64_t e = 0; e < held.elements(); ++e)
                EXPECT_TRUE(places.insert(slots.place(rank, slot, i, held.local + e)).second);
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
