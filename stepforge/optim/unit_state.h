// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer for the parameters of one unit, and their update.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/slot_layout.h"
#include "stepforge/optim/update_rule.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// Optimizer and ShardedAdamW are built from it: they choose the intervals and count the steps.
class UnitState {
 public:
  /// `counts`: the slots of each parameter. `unit` must outlive it.
  UnitState(const UnitStore& unit, std::vector<int> counts);

  /// Allocates the slots, filled with zeros, unless they exist.
  void allocate();
  bool allocated() const { return allocated_; }
  const SlotLayout& layout() const { return layout_; }
  /// Flat fp32 [layout().size(slot)] each; none before allocate().
  const std::vector<at::Tensor>& slots() const { return slots_; }
  /// The offset of the elements of a parameter in a slot is so much smaller than in the shard.
  int64_t shift(size_t parameter, int slot) const { return layout_.shift(unit_->shard(), slot, parameter); }

  /// Updates the unit's parameters [first, last), which have equally many slots, with `gradient`, fp32 [shard_size()]. A
  /// rule by matrix updates those that this rank holds.
  void update(size_t first, size_t last, const at::Tensor& gradient, const UpdateRule& rule,
              const UpdateScalars& scalars);

  /// For an offloaded unit: copies the slots to `buffer`, fp32 [layout().elements()], on which update() then works.
  /// offload() copies them back.
  void reload(const at::Tensor& buffer);
  void offload();

 private:
  void update_range(const ShardRange& range, size_t first, const at::Tensor& gradient, const UpdateRule& rule,
                    const UpdateScalars& scalars, std::vector<int64_t> shape);

  const UnitStore* unit_;
  SlotLayout layout_;
  bool allocated_ = false;
  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> working_;  ///< slots_, or the copies on the device of an offloaded unit
};

}  // namespace stepforge
