// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/unit_tree.h"

#include <algorithm>

namespace stepforge {

std::shared_ptr<ShardedUnit> unit_of(const torch::nn::Module& module) {
  for (const auto& child : module.children()) {
    if (auto unit = std::dynamic_pointer_cast<ShardedUnit>(child)) return unit;
  }
  return nullptr;
}

namespace {

void add_units(const torch::nn::Module& module, const std::string& prefix, std::vector<UnitEntry>& units) {
  if (auto unit = unit_of(module)) units.push_back({prefix, std::move(unit)});
  for (const auto& child : module.named_children()) {
    add_units(*child.value(), prefix + child.key() + ".", units);
  }
}

}  // namespace

std::vector<UnitEntry> units_in(const torch::nn::Module& root) {
  std::vector<UnitEntry> units;
  add_units(root, "", units);
  return units;
}

std::vector<FsdpParamRef> sharded_parameters(const torch::nn::Module& root) {
  std::vector<FsdpParamRef> result;
  for (const UnitEntry& entry : units_in(root)) {
    for (const auto& group : entry.unit->param_groups()) {
      for (size_t i = 0; i < group->parameters().size(); ++i) {
        const NamedParameter& parameter = group->parameters()[i];
        std::vector<std::string> aliases;
        for (const std::string& alias : parameter.aliases) aliases.push_back(entry.prefix + alias);
        result.push_back({entry.prefix + parameter.name, std::move(aliases), group.get(), i});
      }
    }
  }
  return result;
}

at::Device device_of(const std::vector<FsdpParamRef>& parameters) {
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().group->store().master().device();
}

std::vector<std::pair<std::string, at::Tensor>> unsharded_parameters(const torch::nn::Module& root) {
  const std::vector<UnitEntry> units = units_in(root);
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& parameter : root.named_parameters()) {
    const bool sharded = std::any_of(units.begin(), units.end(), [&](const UnitEntry& entry) {
      const auto& borrowed = entry.unit->borrowed;
      return entry.unit->owns(parameter.value()) ||
             std::any_of(borrowed.begin(), borrowed.end(),
                         [&](const auto& owner) { return owner->owns(parameter.value()); });
    });
    if (!sharded) result.emplace_back(parameter.key(), parameter.value());
  }
  return result;
}

}  // namespace stepforge
