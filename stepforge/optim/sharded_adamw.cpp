// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/sharded_adamw.h"

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"

namespace stepforge {

namespace {

UpdateOptions options_of(const AdamWOptions& options) {
  return {.lr = options.lr,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = options.weight_decay};
}

}  // namespace

ShardedAdamW::ShardedAdamW(const ShardedModule& module, const AdamWOptions& options)
    : ShardedAdamW(module, [options](const std::string&) { return options; }) {}

ShardedAdamW::ShardedAdamW(const ShardedModule& module, const OptionsOf& options)
    : parameters_(sharded_parameters(*module.module())),
      scalars_(first_update_scalars(device_of(parameters_))) {
  if (!module.is_sharded()) {
    throw UsageError("ShardedAdamW: the module is not sharded; call fully_shard before making its optimizer");
  }
  const OptimizerKind& adamw = builtin_optimizers().front();
  for (const FsdpParamRef& parameter : parameters_) {
    if (states_.empty() || states_.back().group != parameter.group) {
      const UnitStore& store = parameter.group->store();
      states_.push_back({parameter.group, {}, {}, {}, UnitState(store, adamw_slots(store.spec()))});
    }
    states_.back().options.push_back(options(parameter.name));
    states_.back().rules.push_back(make_update_rule(adamw, options_of(states_.back().options.back())));
  }
  for (GroupState& state : states_)
    state.steps =
        at::zeros({static_cast<int64_t>(state.options.size())}, at::device(at::kCPU).dtype(at::kLong));
}

void ShardedAdamW::step(double lr_factor) {
  scalars_.lr_factor.fill_(lr_factor);
  for (GroupState& state : states_) {
    state.group->finish_reduction();
    state.group->wait_for_gather();
    if (update(state)) state.group->masters_changed();
  }
}

bool ShardedAdamW::update(GroupState& state) {
  FsdpParamGroup& group = *state.group;
  const size_t count = state.options.size();
  auto* steps = state.steps.data_ptr<int64_t>();
  const auto has_gradient = [&](size_t i) { return group.local(i).grad().defined(); };
  at::Tensor gradient;
  for (size_t first = 0; first < count;) {
    if (!has_gradient(first)) {
      ++first;
      continue;
    }
    const int64_t updates = steps[first];
    size_t last = first + 1;
    while (last < count && has_gradient(last) && steps[last] == updates &&
           state.options[first] == state.options[last]) {
      ++last;
    }
    if (!gradient.defined()) {
      gradient = group.gradient();
      state.moments.allocate();
    }
    scalars_.number.fill_(updates + 1);
    state.moments.update(first, last, gradient, state.rules[first], /*by_matrix=*/false, scalars_);
    for (size_t i = first; i < last; ++i) ++steps[i];
    first = last;
  }
  return gradient.defined();
}

std::vector<const ShardedAdamW::GroupState*> ShardedAdamW::state() {
  std::vector<const GroupState*> states;
  for (GroupState& state : states_) {
    if (state.group->any_trained()) state.moments.allocate();
    if (state.moments.allocated()) states.push_back(&state);
  }
  return states;
}

}  // namespace stepforge
