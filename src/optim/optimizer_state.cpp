#include "optim/optimizer_state.h"

#include <ATen/ops/full.h>

#include "base/format.h"

namespace stepforge {

namespace {

/// Moments as units of their parameters' layouts, and the number of steps.
StateSource source_of(ShardedAdamW& optimizer, const at::Tensor& steps) {
  StateSource source;
  source.all =
      optimizer.parameters().empty() ? nullptr : optimizer.parameters()[0].part->store().groups().data();
  for (const ShardedAdamW::Moments& moments : optimizer.moments()) {
    for (size_t slot = 0; slot < moments.slots.size(); ++slot) {
      const auto unit = static_cast<int>(source.units.size());
      source.units.push_back({&moments.parameters->store(), moments.slots[slot]});
      for (const ShardedParameter& parameter : optimizer.parameters()) {
        if (parameter.part != moments.parameters) continue;
        source.entries.push_back({format("state.{}.{}", parameter.name, ShardedAdamW::slot_names[slot]),
                                  unit,
                                  parameter.index,
                                  {},
                                  !parameter.part->trained(parameter.index)});
      }
    }
  }
  source.entries.push_back({"step", -1, 0, steps});
  return source;
}

at::Tensor step_tensor(const ShardedAdamW& optimizer) {
  return at::full({}, optimizer.steps(), at::kLong);
}

}  // namespace

StateDict get_optimizer_state_dict(ShardedAdamW& optimizer, const GetStateOptions& options) {
  return get_state_dict(source_of(optimizer, step_tensor(optimizer)), options);
}

LoadReport load_optimizer_state_dict(ShardedAdamW& optimizer, const StateDict& values,
                                     const LoadStateOptions& options) {
  const at::Tensor steps = step_tensor(optimizer);
  LoadReport report = load_state_dict(source_of(optimizer, steps), values, options);
  optimizer.set_steps(steps.item<int64_t>());
  return report;
}

}  // namespace stepforge
