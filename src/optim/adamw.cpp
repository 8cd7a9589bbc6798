#include "optim/adamw.h"

#include <cmath>
#include <utility>

#include <ATen/ops/zeros.h>

#include "kernels/adamw.h"
#include "kernels/reduce.h"

namespace stepforge {

AdamW::AdamW(ModelStore& store, ParamGroups groups, double eps)
    : store_(store), groups_(std::move(groups)), eps_(eps) {
  for (size_t i = 0; i < store_.size(); ++i) {
    auto& slots = slots_.emplace_back();
    if (!store_.unit(i).trained()) continue;
    for (auto& slot : slots) slot = at::zeros({store_.unit(i).layout().size}, at::kFloat);
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
    adamw_update(storage.master(), storage.gradient(), slots_[index][0], slots_[index][1], interval.begin,
                 interval.end, settings);
  }
}

double gradient_norm(const ModelStore& store) {
  double sum = 0.0;
  for (size_t i = 0; i < store.size(); ++i) {
    if (store.unit(i).trained()) sum += sum_of_squares(store.unit(i).gradient());
  }
  return std::sqrt(sum);
}

}  // namespace stepforge
