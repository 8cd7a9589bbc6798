// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/adamw.h"

#include <utility>

#include <ATen/ops/zeros.h>

namespace stepforge {

void UnitAdamW::allocate() {
  if (slots_[0].defined()) return;
  for (at::Tensor& slot : slots_) slot = at::zeros({unit_->shard_size()}, at::kFloat);
  if (!unit_->layout().offloaded) working_ = slots_;
}

void UnitAdamW::update(size_t first, size_t last, const at::Tensor& gradient, const AdamWOptions& options,
                       const UpdateScalars& scalars) {
  const ShardRange range = unit_->local_range(first, last);
  adamw_update(unit_->working_master(), gradient, working_[0], working_[1], range.begin, range.end, options,
               scalars);
}

void UnitAdamW::reload(const at::Tensor& buffer) {
  const int64_t size = unit_->shard_size();
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    working_.at(slot) = buffer.narrow(0, static_cast<int64_t>(slot) * size, size);
    working_.at(slot).copy_(slots_.at(slot));
  }
}

void UnitAdamW::offload() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    slots_.at(slot).copy_(working_.at(slot));
    working_.at(slot).reset();
  }
}

AdamW::AdamW(ModelStore& store, ParamGroups groups)
    : store_(store),
      groups_(std::move(groups)),
      steps_(at::zeros({}, at::TensorOptions(at::kDouble).device(store.device()))) {
  for (size_t i = 0; i < store_.size(); ++i) {
    units_.emplace_back(store_.unit(i));
    if (store_.unit(i).trained()) units_.back().allocate();
  }
}

void AdamW::begin_update(const UpdateScalars& scalars) {
  scalars.number.copy_(steps_).add_(1.0);
}

void AdamW::update(int unit, const UpdateScalars& scalars) {
  const auto index = static_cast<size_t>(unit);
  for (const ParamInterval& interval : groups_.intervals.at(index)) {
    const AdamWOptions& options = groups_.groups.at(static_cast<size_t>(interval.group)).options;
    units_.at(index).update(interval.first, interval.last, store_.unit(index).working_gradient(), options,
                            scalars);
  }
}

void AdamW::end_update(const UpdateScalars& scalars) {
  steps_.add_(scalars.finite);
}

int64_t AdamW::steps() const {
  return static_cast<int64_t>(steps_.item<double>());
}

}  // namespace stepforge
