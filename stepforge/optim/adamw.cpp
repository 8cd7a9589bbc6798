#include "stepforge/optim/adamw.h"

#include <utility>

#include <ATen/ops/zeros.h>

#include "stepforge/kernels/adamw.h"

namespace stepforge {

AdamW::AdamW(ModelStore& store, ParamGroups groups, double eps)
    : store_(store), groups_(std::move(groups)), eps_(eps) {
  for (size_t i = 0; i < store_.size(); ++i) {
    const UnitStore& unit = store_.unit(i);
    auto& slots = slots_.emplace_back();
    if (unit.trained()) {
      for (auto& slot : slots) slot = at::zeros({unit.shard_size()}, at::kFloat);
    }
    working_slots_.push_back(unit.options().offload ? std::array<at::Tensor, 2>() : slots);
  }
}

void AdamW::begin_update(double lr_factor, double grad_scale) {
  lr_factor_ = lr_factor;
  grad_scale_ = grad_scale;
}

void AdamW::update(int unit) {
  const auto index = static_cast<size_t>(unit);
  UnitStore& storage = store_.unit(index);
  for (const ParamInterval& interval : groups_.intervals.at(index)) {
    const ParamGroup& group = groups_.groups.at(static_cast<size_t>(interval.group));
    const AdamWSettings settings{group.lr * lr_factor_, group.beta1, group.beta2, eps_,
                                 group.weight_decay,    steps_ + 1,  grad_scale_};
    const ShardRange range = storage.local_range(interval.first, interval.last);
    adamw_update(storage.working_master(), storage.working_gradient(), working_slots_[index][0],
                 working_slots_[index][1], range.begin, range.end, settings);
  }
}

void AdamW::reload(int unit, const at::Tensor& buffer) {
  const auto index = static_cast<size_t>(unit);
  const int64_t size = store_.unit(index).shard_size();
  for (size_t slot = 0; slot < slot_names.size(); ++slot) {
    at::Tensor& working = working_slots_[index].at(slot);
    working = buffer.narrow(0, static_cast<int64_t>(slot) * size, size);
    working.copy_(slots_[index].at(slot));
  }
}

void AdamW::offload(int unit) {
  const auto index = static_cast<size_t>(unit);
  for (size_t slot = 0; slot < slot_names.size(); ++slot) {
    at::Tensor& working = working_slots_[index].at(slot);
    slots_[index].at(slot).copy_(working);
    working.reset();
  }
}

}  // namespace stepforge
