// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/unit_state.h"

#include <utility>

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

UnitState::UnitState(const UnitStore& unit, const UnitSlots& slots)
    : unit_(&unit), layout_(unit.shards(), unit.spec(), slots) {}

void UnitState::allocate() {
  if (allocated_) return;
  allocated_ = true;
  for (size_t slot = 0; slot < layout_.slots().size(); ++slot)
    slots_.push_back(at::zeros({layout_.size(static_cast<int>(slot))},
                               unit_->resting_options(scalar_type(layout_.slots()[slot].dtype))));
  working_ = unit_->layout().offloaded ? std::vector<at::Tensor>(slots_.size()) : slots_;
}

at::Tensor UnitState::view_of(const at::Tensor& flat, int slot, size_t parameter, int64_t local,
                              const std::vector<int64_t>& shape) const {
  const std::vector<int64_t> sizes = layout_.slots().at(static_cast<size_t>(slot)).shape(shape);
  const int64_t begin = layout_.place(unit_->shard(), slot, parameter, local);
  return flat.narrow(0, begin, c10::multiply_integers(sizes)).view(sizes);
}

at::Tensor UnitState::values(int slot, size_t parameter, const ShardSlice& held) const {
  return view_of(slots_.at(static_cast<size_t>(slot)), slot, parameter, held.local, held.slice.sizes);
}

void UnitState::update(size_t first, size_t last, const at::Tensor& gradient, const UpdateRule& rule,
                       bool by_matrix, const UpdateScalars& scalars) {
  if (!by_matrix) {
    const ShardRange range = unit_->local_range(first, last);
    return update_range(range, first, gradient, rule, scalars,
                        [](const at::Tensor& values) { return values; });
  }
  for (size_t i = first; i < last; ++i) {
    const ParameterSpec& parameter = unit_->spec().parameters[i];
    int64_t row = 0;
    for (const SubTensor& tensor : parameter.sub_tensors) {
      const MatrixShape matrix = parameter.matrix_of(tensor);
      const auto as_matrix = [&](const at::Tensor& values) {
        return matrix.transposed ? values.view({matrix.columns, matrix.rows}).t()
                                 : values.view({matrix.rows, matrix.columns});
      };
      const int64_t each = matrix.transposed ? 1 : tensor.rows;
      const int64_t end = row + tensor.rows;
      for (; row < end; row += each) {
        for (const ShardSlice& held : unit_->slices(i, row, row + each)) {
          if (held.elements() != matrix.rows * matrix.columns)
            throw Error(
                format("{} is divided over ranks, but its update needs whole matrices", tensor.hf_name));
          update_range({held.local, held.local + held.elements()}, i, gradient, rule, scalars, as_matrix);
        }
      }
    }
  }
}

void UnitState::update_range(const ShardRange& range, size_t first, const at::Tensor& gradient,
                             const UpdateRule& rule, const UpdateScalars& scalars, const Shaped& shaped) {
  if (range.size() == 0) return;
  const auto part = [&](const at::Tensor& flat) { return shaped(flat.narrow(0, range.begin, range.size())); };
  std::vector<at::Tensor> slots;
  for (const int slot : layout_.of(first))
    slots.push_back(
        shaped(view_of(working_.at(static_cast<size_t>(slot)), slot, first, range.begin, {range.size()})));
  rule({part(unit_->working_master()), part(gradient), slots, scalars});
}

void UnitState::reload(const at::Tensor& buffer) {
  const at::Tensor bytes = buffer.view(at::kByte);
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const auto begin = layout_.begin(static_cast<int>(slot));
    working_[slot] =
        bytes.narrow(0, begin, static_cast<int64_t>(slots_[slot].nbytes())).view(slots_[slot].scalar_type());
    working_[slot].copy_(slots_[slot], /*non_blocking=*/true);
  }
}

void UnitState::offload() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    slots_[slot].copy_(working_[slot], /*non_blocking=*/true);
    working_[slot].reset();
  }
}

}  // namespace stepforge
