// SPDX-License-Identifier: Apache-2.0
// The memory of an optimizer's state for one unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

/// The elements that share the scale of quantized optimizer state.
inline constexpr int64_t kQuantizedBlock = 256;

/// A slot of an optimizer's state: a value for each element of a parameter, or for each block of its elements.
struct SlotSpec {
  std::string name;  ///< in checkpoints, as in torch.optim: "exp_avg"
  DType dtype = DType::f32;
  /// The consecutive elements of a row (the last dimension) that share a value: a divisor of kTensorAlignment.
  int64_t block = 1;

  /// Bytes of the values of so many elements.
  int64_t bytes(int64_t elements) const { return elements / block * dtype_bytes(dtype); }
  /// The shape of the values of a tensor of this shape, and the slice of them that belongs to a slice of it.
  std::vector<int64_t> shape(std::vector<int64_t> of) const;
  TensorSlice slice(TensorSlice of) const;
  bool operator==(const SlotSpec&) const = default;
};

/// The slots of each parameter of a unit, in the order in which its optimizer takes them.
using UnitSlots = std::vector<std::vector<SlotSpec>>;

/// exp_avg and exp_avg_sq in fp32 of each parameter (AdamW).
UnitSlots adamw_slots(const UnitSpec& unit);

/// A slot is a flat buffer on each rank, with the values of the parameters that have it, in the order of the shard. It is as
/// large on all ranks of the shard group. Parameters share a slot if theirs are equal in name, type and block.
class SlotLayout {
 public:
  /// Throws UsageError if a block of a slot would be divided over ranks.
  SlotLayout(const ShardLayout& shards, const UnitSpec& unit, const UnitSlots& slots);

  /// Each slot that some parameter has.
  const std::vector<SlotSpec>& slots() const { return slots_; }
  /// The slots of a parameter, as indices of slots(), in the order of UnitSlots.
  const std::vector<int>& of(std::size_t parameter) const { return of_parameters_.at(parameter); }
  /// Values of a slot on each rank.
  int64_t size(int slot) const { return sizes_.at(static_cast<std::size_t>(slot)); }
  /// Of a buffer of all slots on each rank, one after the other: its size, and where a slot begins. Multiples of 64.
  int64_t bytes() const { return begins_.back(); }
  int64_t begin(int slot) const { return begins_.at(static_cast<std::size_t>(slot)); }
  /// The index of the value of element `local` of the shard of `rank`, which belongs to `parameter`.
  int64_t place(int rank, int slot, std::size_t parameter, int64_t local) const;

 private:
  /// Neighbouring parameters that have a slot.
  struct Run {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  std::vector<Run> runs_of(int slot) const;
  bool has(std::size_t parameter, int slot) const;
  /// Whether all parameters have the slot.
  bool is_whole(int slot) const;
  /// Elements of a run on a rank, up to the next tensor.
  int64_t elements(int rank, const Run& run) const;
  void require_whole_blocks(const UnitSpec& unit) const;

  ShardLayout shards_;
  std::vector<SlotSpec> slots_;
  std::vector<std::vector<int>> of_parameters_;
  std::vector<std::vector<Run>> runs_;  // of each slot
  std::vector<int64_t> sizes_;          // of each slot
  std::vector<int64_t> begins_;         // of each slot, and the end
};

}  // namespace stepforge
