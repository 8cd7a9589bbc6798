// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/optimizer_state.h"

#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Moments have the layouts of their parameters; step counts are whole on every rank.
StateSource source_of(ShardedAdamW& optimizer) {
  StateSource source;
  if (!optimizer.parameters().empty()) {
    const ShardMesh& mesh = optimizer.parameters()[0].group->mesh();
    source.all = mesh.all_ranks();
    source.tensor_ranks = mesh.tensor_ranks();
  }
  for (const ShardedAdamW::GroupState* state : optimizer.state()) {
    const auto first_unit = static_cast<int>(source.units.size());
    const auto& slots = state->moments.slots();
    for (const at::Tensor& slot : slots) source.units.push_back({&state->group->store(), slot});
    for (const FsdpParamRef& parameter : optimizer.parameters()) {
      if (parameter.group != state->group) continue;
      const bool frozen = !parameter.group->trained(parameter.index);
      const auto name = [&](std::string_view slot) { return format("state.{}.{}", parameter.name, slot); };
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        source.entries.push_back({name(state->moments.layout().slots()[slot].name),
                                  first_unit + static_cast<int>(slot),
                                  parameter.index,
                                  {},
                                  frozen});
      }
      const at::Tensor steps = state->steps.select(0, static_cast<int64_t>(parameter.index));
      source.entries.push_back({name("step"), -1, 0, steps, frozen});
    }
  }
  return source;
}

}  // namespace

StateDict get_optimizer_state_dict(ShardedAdamW& optimizer, const GetStateOptions& options) {
  return get_state_dict(source_of(optimizer), options);
}

LoadReport load_optimizer_state_dict(ShardedAdamW& optimizer, const StateDict& values,
                                     const LoadStateOptions& options) {
  if (options.assign)
    throw UsageError("assign: the optimizer keeps its state in its own buffers; load it without assign");
  return load_state_dict(source_of(optimizer), values, options);
}

}  // namespace stepforge
