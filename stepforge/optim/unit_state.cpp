// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/unit_state.h"

#include <utility>

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

UnitState::UnitState(const UnitStore& unit, std::vector<int> counts)
    : unit_(&unit), layout_(unit.shards(), std::move(counts)) {}

void UnitState::allocate() {
  if (allocated_) return;
  allocated_ = true;
  for (int slot = 0; slot < layout_.slots(); ++slot)
    slots_.push_back(at::zeros({layout_.size(slot)}, at::kFloat));
  working_ = unit_->layout().offloaded ? std::vector<at::Tensor>(slots_.size()) : slots_;
}

void UnitState::update(size_t first, size_t last, const at::Tensor& gradient, const UpdateRule& rule,
                       const UpdateScalars& scalars) {
  if (!rule.by_matrix()) {
    const ShardRange range = unit_->local_range(first, last);
    return update_range(range, first, gradient, rule, scalars, {range.size()});
  }
  for (size_t i = first; i < last; ++i) {
    const ParameterSpec& parameter = unit_->spec().parameters[i];
    int64_t row = 0;
    for (const SubTensor& matrix : parameter.sub_tensors) {
      for (const ShardSlice& held : unit_->slices(i, row, row + matrix.rows)) {
        const std::vector<int64_t> shape = {matrix.rows, parameter.row_elements()};
        if (held.slice.sizes != shape)
          throw Error(
              format("{} is divided over ranks, but its update needs the whole matrix", matrix.hf_name));
        update_range({held.local, held.local + held.elements()}, i, gradient, rule, scalars, shape);
      }
      row += matrix.rows;
    }
  }
}

void UnitState::update_range(const ShardRange& range, size_t first, const at::Tensor& gradient,
                             const UpdateRule& rule, const UpdateScalars& scalars,
                             std::vector<int64_t> shape) {
  if (range.size() == 0) return;
  const auto part = [&](const at::Tensor& flat, int64_t shift) {
    return flat.narrow(0, range.begin - shift, range.size()).view(shape);
  };
  std::vector<at::Tensor> slots;
  for (int slot = 0; slot < layout_.count(first); ++slot)
    slots.push_back(part(working_.at(static_cast<size_t>(slot)), shift(first, slot)));
  rule.update(part(unit_->working_master(), 0), part(gradient, 0), slots, scalars);
}

void UnitState::reload(const at::Tensor& buffer) {
  int64_t begin = 0;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    working_[slot] = buffer.narrow(0, begin, slots_[slot].numel());
    working_[slot].copy_(slots_[slot]);
    begin += slots_[slot].numel();
  }
}

void UnitState::offload() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    slots_[slot].copy_(working_[slot]);
    working_[slot].reset();
  }
}

}  // namespace stepforge
