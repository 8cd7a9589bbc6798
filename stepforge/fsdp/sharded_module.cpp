// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/fsdp/fully_shard.h"
#include "stepforge/fsdp/unit_runtime.h"
#include "stepforge/fsdp/unit_tree.h"

namespace stepforge {

std::shared_ptr<ShardedUnit> ShardedModule::find_unit() const {
  if (unit_ == nullptr) unit_ = unit_of(*module());
  return unit_;
}

std::shared_ptr<ShardedUnit> ShardedModule::unit() const {
  auto unit = find_unit();
  if (unit == nullptr) {
    throw UsageError(format("module {} is not sharded: call fully_shard on its holder", module()->name()));
  }
  return unit;
}

void ShardedModule::for_each_unit(bool recurse, const std::function<void(ShardedUnit&)>& visit) const {
  const auto own = unit();
  if (!recurse) return visit(*own);
  for (const UnitEntry& entry : units_in(*module())) visit(*entry.unit);
}

UnshardHandle ShardedModule::unshard(bool async) const {
  UnshardHandle handle(unit());
  unit()->unshard(/*wait=*/!async);
  return handle;
}

void ShardedModule::reshard() const {
  unit()->reshard();
}

void ShardedModule::set_requires_gradient_sync(bool wanted, bool recurse) const {
  for_each_unit(recurse, [&](ShardedUnit& unit) { unit.behavior.requires_gradient_sync = wanted; });
}

void ShardedModule::set_requires_all_reduce(bool wanted, bool recurse) const {
  for_each_unit(recurse, [&](ShardedUnit& unit) { unit.behavior.requires_all_reduce = wanted; });
}

void ShardedModule::set_reshard_after_forward(bool wanted, bool recurse) const {
  for_each_unit(recurse, [&](ShardedUnit& unit) { unit.behavior.reshard_after_forward = wanted; });
}

void ShardedModule::set_reshard_after_backward(bool wanted, bool recurse) const {
  for_each_unit(recurse, [&](ShardedUnit& unit) { unit.behavior.reshard_after_backward = wanted; });
}

void ShardedModule::set_is_last_backward(bool last, bool recurse) const {
  for_each_unit(recurse, [&](ShardedUnit& unit) { unit.behavior.is_last_backward = last; });
}

void ShardedModule::set_reduce_op(ReduceOp op, bool recurse) const {
  for_each_unit(recurse, [&](ShardedUnit& unit) { unit.behavior.reduce_op = op; });
}

void ShardedModule::set_gradient_scaling_factor(std::optional<double> factor, bool recurse) const {
  if (factor && !std::isfinite(*factor)) {
    throw UsageError(format("gradient scaling factor = {}: must be finite", *factor));
  }
  for_each_unit(recurse, [&](ShardedUnit& unit) { unit.behavior.scaling_factor = factor.value_or(1.0); });
}

namespace {

std::vector<std::weak_ptr<ShardedUnit>> units_of(const ShardedModule::List& modules) {
  std::vector<std::weak_ptr<ShardedUnit>> units;
  for (const ShardedModule& module : modules) units.emplace_back(module.unit());
  return units;
}

}  // namespace

void ShardedModule::set_modules_to_forward_prefetch(const List& modules) const {
  unit()->behavior.forward_prefetch = units_of(modules);
}

void ShardedModule::set_modules_to_backward_prefetch(const List& modules) const {
  unit()->behavior.backward_prefetch = units_of(modules);
}

void ShardedModule::zero_grad() const {
  unit()->mesh().runtime().abandon_backward();
  for_each_unit(/*recurse=*/true, [](ShardedUnit& unit) { unit.drop_gradients(); });
}

void ShardedModule::wait_for_reductions() const {
  unit()->mesh().runtime().finish_reductions();
}

std::vector<std::pair<std::string, at::Tensor>> ShardedModule::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const FsdpParamRef& parameter : sharded_parameters(*module())) {
    result.emplace_back(parameter.name, parameter.local());
  }
  for (auto& parameter : unsharded_parameters(*module())) result.push_back(std::move(parameter));
  return result;
}

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> result;
  for (auto& [name, tensor] : named_parameters()) result.push_back(tensor);
  return result;
}

}  // namespace stepforge
