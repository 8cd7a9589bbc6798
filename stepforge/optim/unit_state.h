// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer for the parameters of one unit, and their update.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/slot_layout.h"
#include "stepforge/optim/update_rule.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// Optimizer and ShardedAdamW are built from it: they choose the intervals and count the steps.
class UnitState {
 public:
  /// `slots`: of each parameter. `unit` must outlive it. Throws UsageError as SlotLayout does.
  UnitState(const UnitStore& unit, const UnitSlots& slots);

  /// Allocates the slots, filled with zeros, unless they exist.
  void allocate();
  bool allocated() const { return allocated_; }
  const SlotLayout& layout() const { return layout_; }
  /// Flat [layout().size(slot)] of the slot's type each; none before allocate().
  const std::vector<at::Tensor>& slots() const { return slots_; }
  /// The view of the values of a slot for `held`, a slice of `parameter` in this rank's shard; shaped as SlotSpec::slice of it.
  at::Tensor values(int slot, size_t parameter, const ShardSlice& held) const;

  /// Updates the unit's parameters [first, last), which have the same slots, with `gradient`, fp32 [shard_size()]: those
  /// that this rank holds, `by_matrix` or as one interval.
  void update(size_t first, size_t last, const at::Tensor& gradient, const UpdateRule& rule, bool by_matrix,
              const UpdateScalars& scalars);

  /// For an offloaded unit: copies the slots to `buffer`, layout().bytes() bytes, on which update() then works. offload()
  /// copies them back.
  void reload(const at::Tensor& buffer);
  void offload();

 private:
  /// Turns a flat tensor into the view that an update takes.
  using Shaped = std::function<at::Tensor(const at::Tensor&)>;

  void update_range(const ShardRange& range, size_t first, const at::Tensor& gradient, const UpdateRule& rule,
                    const UpdateScalars& scalars, const Shaped& shaped);
  /// The slot's values, in its memory `flat`, for the elements of `shape` that begin at element `local` of the shard.
  at::Tensor view_of(const at::Tensor& flat, int slot, size_t parameter, int64_t local,
                     const std::vector<int64_t>& shape) const;

  const UnitStore* unit_;
  SlotLayout layout_;
  bool allocated_ = false;
  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> working_;  ///< slots_, or the copies on the device of an offloaded unit
};

}  // namespace stepforge
