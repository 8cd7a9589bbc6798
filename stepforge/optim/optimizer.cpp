// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/optimizer.h"

#include <utility>

#include <ATen/ops/zeros.h>

namespace stepforge {

Optimizer::Optimizer(ModelStore& store, ParamGroups groups)
    : store_(store),
      groups_(std::move(groups)),
      steps_(at::zeros({}, at::TensorOptions(at::kDouble).device(store.device()))) {
  for (size_t u = 0; u < store_.size(); ++u) {
    const UnitStore& unit = store_.unit(u);
    units_.emplace_back(unit, groups_.optimizer.slots(unit.spec()));
    if (unit.trained()) units_.back().allocate();
  }
}

void Optimizer::begin_update(const UpdateScalars& scalars) {
  scalars.number.copy_(steps_).add_(1.0);
}

void Optimizer::update(int unit, const UpdateScalars& scalars) {
  const auto index = static_cast<size_t>(unit);
  const UnitStore& store = store_.unit(index);
  for (const ParamInterval& interval : groups_.intervals.at(index)) {
    const bool by_matrix = groups_.optimizer.of(store.spec().parameters.at(interval.first)).by_matrix;
    units_.at(index).update(interval.first, interval.last, store.working_gradient(),
                            groups_.rules.at(static_cast<size_t>(interval.group)), by_matrix, scalars);
  }
}

void Optimizer::end_update(const UpdateScalars& scalars) {
  steps_.add_(scalars.finite);
}

int64_t Optimizer::steps() const {
  return static_cast<int64_t>(steps_.item<double>());
}

}  // namespace stepforge
