// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/sharded_unit.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/fsdp/unit_runtime.h"

namespace stepforge {

ShardedUnit::ShardedUnit(std::string name, std::shared_ptr<ShardMesh> mesh, MixedPrecision precision)
    : torch::nn::Module("ShardedUnit"),
      name_(std::move(name)),
      precision_(precision),
      mesh_(std::move(mesh)) {}

bool ShardedUnit::owns(const at::Tensor& parameter) const {
  return std::any_of(param_groups_.begin(), param_groups_.end(), [&](const auto& group) {
    const auto& parameters = group->parameters();
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](const NamedParameter& own) { return own.tensor.is_same(parameter); });
  });
}

void ShardedUnit::unshard(bool wait) {
  for (const auto& group : param_groups_) group->start_gather();
  if (!wait) return;
  for (const auto& group : param_groups_) group->finish_gather();
}

void ShardedUnit::reshard() {
  if (uses_ > 0) return;
  for (const auto& group : param_groups_) group->release();
}

bool ShardedUnit::unsharded() const {
  return std::all_of(param_groups_.begin(), param_groups_.end(),
                     [](const auto& group) { return group->gathered(); });
}

void ShardedUnit::begin_forward() {
  if (!without_value.empty()) {
    throw Error(format(
        "unit \"{}\" has no values for {}, which are from the meta device: pass an initialize function to "
        "fully_shard, or load a state dict",
        name_, join(without_value, ", ")));
  }
  unshard(/*wait=*/true);
  ++uses_;
  // In a recomputation the next unit is the one that comes next in backward, not in forward.
  if (UnitRuntime::in_backward()) return;
  for (const auto& next : behavior.forward_prefetch) {
    if (const auto unit = next.lock()) unit->unshard(/*wait=*/false);
  }
}

void ShardedUnit::end_forward() {
  --uses_;
  // The backward that follows a recomputation uses the values that it has gathered.
  if (behavior.reshard_after_forward && !UnitRuntime::in_backward()) reshard();
}

void ShardedUnit::begin_backward(ShardedUnit* next) {
  unshard(/*wait=*/true);
  ++uses_;
  for (const auto& group : param_groups_) group->start_gradient();
  if (!behavior.backward_prefetch) {
    if (next != nullptr) next->unshard(/*wait=*/false);
    return;
  }
  for (const auto& listed : *behavior.backward_prefetch) {
    if (const auto unit = listed.lock()) unit->unshard(/*wait=*/false);
  }
}

void ShardedUnit::end_backward() {
  --uses_;
  if (behavior.reshard_after_backward) reshard();
}

void ShardedUnit::start_reduction() {
  const double share = behavior.reduce_op == ReduceOp::avg ? 1.0 / mesh_->ranks() : 1.0;
  const ReduceRule rule{behavior.requires_all_reduce, share * behavior.scaling_factor};
  for (const auto& group : param_groups_) group->start_reduction(rule);
}

void ShardedUnit::finish_reduction() {
  for (const auto& group : param_groups_) group->finish_reduction();
}

void ShardedUnit::wait_for_gather() {
  for (const auto& group : param_groups_) group->wait_for_gather();
}

void ShardedUnit::drop_gradients() {
  for (const auto& group : param_groups_) group->zero_grad();
  for (const NamedParameter& parameter : ignored) parameter.tensor.mutable_grad() = at::Tensor();
}

void ShardedUnit::clear_uses() {
  uses_ = 0;
  reshard();
}

}  // namespace stepforge
