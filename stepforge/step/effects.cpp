// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/effects.h"

#include <algorithm>

#include "stepforge/base/format.h"

namespace stepforge {

ProgramEffects::ProgramEffects(const StepProgram& program)
    : program_(program),
      has_label_group_(program.kind != ProgramKind::generate && label_group(program.groups) >= 0),
      has_stages_(find_group(program.groups, kPipelineGroup) >= 0),
      has_loss_group_(program.kind != ProgramKind::generate && find_group(program.groups, kLossGroup) >= 0),
      has_tensor_group_(find_group(program.groups, kTensorGroup) >= 0) {
  tied_by_leaf_.resize(program.units.size(), false);
  for (const Operation& operation : program.operations) {
    levels_ = std::max(levels_, static_cast<std::size_t>(operation.level + 1));
    if (operation.kind == OpKind::tie_leaf) element(tied_by_leaf_, operation.unit) = true;
  }
  for (const ResourceInfo& row : resource_table::kRows) {
    first_.at(static_cast<std::size_t>(row.resource)) = count_;
    count_ += owners(row.owner) * numbers(row.owner);
  }
}

std::size_t ProgramEffects::owners(OwnerKind kind) const {
  switch (kind) {
    case OwnerKind::value:
      return program_.values.size();
    case OwnerKind::block:
      return program_.blocks.size();
    case OwnerKind::unit:
    case OwnerKind::leaf:
    case OwnerKind::level:
      return program_.units.size();
    case OwnerKind::buffer:
      return program_.buffers.size();
    case OwnerKind::micro_batch:
    case OwnerKind::step:
      return 1;
  }
  return 0;
}

std::size_t ProgramEffects::numbers(OwnerKind kind) const {
  switch (kind) {
    case OwnerKind::micro_batch:
    case OwnerKind::value:
    case OwnerKind::block:
    case OwnerKind::leaf:
      return static_cast<std::size_t>(program_.micro_batches);
    case OwnerKind::level:
      return levels_;
    case OwnerKind::unit:
    case OwnerKind::step:
    case OwnerKind::buffer:
      return 1;
  }
  return 0;
}

std::size_t ProgramEffects::index(const Instance& instance) const {
  const OwnerKind owner = resource_info(instance.resource).owner;
  return first_.at(static_cast<std::size_t>(instance.resource)) +
         static_cast<std::size_t>(instance.owner) * numbers(owner) +
         static_cast<std::size_t>(instance.number);
}

std::vector<Instance> ProgramEffects::all() const {
  std::vector<Instance> instances;
  for (const ResourceInfo& row : resource_table::kRows)
    for (std::size_t owner = 0; owner < owners(row.owner); ++owner)
      for (std::size_t number = 0; number < numbers(row.owner); ++number)
        instances.push_back({row.resource, static_cast<int>(owner), static_cast<int>(number)});
  return instances;
}

bool ProgramEffects::is_persistent(const Instance& instance) const {
  switch (instance.resource) {
    case Resource::gathered:
      return element(program_.units, instance.owner).resident;
    case Resource::weights:
    case Resource::shard_gradient:
    case Resource::optimizer:
      return !element(program_.units, instance.owner).offloaded;
    case Resource::losses:
      return true;
    case Resource::buffer:
      return element(program_.buffers, instance.owner).persistent;
    default:
      return false;
  }
}

bool ProgramEffects::needs_memory(const Instance& instance) const {
  switch (instance.resource) {
    case Resource::gradient:
      return element(program_.units, instance.owner).reduces();
    case Resource::weights:
    case Resource::shard_gradient:
    case Resource::optimizer:
      return true;
    default:
      return false;
  }
}

bool ProgramEffects::is_required(const Instance& instance) const {
  const ResourceInfo& row = resource_info(instance.resource);
  if (row.required == When::runs)
    return program_.kind == ProgramKind::train || !element(program_.blocks, instance.owner).trained_only;
  return row.owner == OwnerKind::unit ? applies(row.required, instance.owner)
                                      : applies(row.required, Operation{});
}

bool ProgramEffects::applies(When when, int unit_index) const {
  const ProgramUnit& unit = element(program_.units, unit_index);
  switch (when) {
    case When::reduces:
      return unit.reduces();
    case When::in_place:
      return !unit.reduces();
    case When::replicated:
      return unit.replica_group >= 0;
    case When::tied:
      return unit.tie_group >= 0 && !element(tied_by_leaf_, unit_index);
    case When::tied_by_leaf:
      return element(tied_by_leaf_, unit_index);
    case When::offloaded:
      return unit.offloaded;
    case When::trained:
      return unit.trainable && program_.kind == ProgramKind::train;
    case When::changes:
      return (unit.trainable || unit.state) && program_.kind == ProgramKind::train;
    default:
      return when != When::never;
  }
}

bool ProgramEffects::applies(When when, const Operation& operation) const {
  switch (when) {
    case When::never:
      return false;
    case When::forward_only:
      return program_.kind != ProgramKind::train;
    case When::keeps_graph:
      return operation.keep_graph;
    case When::reads_weights:
      return reads_weights(program_, operation);
    case When::overwrites:
      return !operation.accumulate;
    case When::accumulates:
      return operation.accumulate;
    case When::copies_weights:
      return operation.parts.weights;
    case When::copies_gradients:
      return operation.parts.gradients;
    case When::copies_optimizer:
      return operation.parts.optimizer;
    case When::has_label_group:
      return has_label_group_;
    case When::has_stages:
      return has_stages_;
    case When::has_loss_group:
      return has_loss_group_;
    case When::has_tensor_group:
      return has_tensor_group_;
    default:  // of units
      return true;
  }
}

Instance ProgramEffects::own_instance(Resource resource, const Operation& operation) const {
  switch (resource_info(resource).owner) {
    case OwnerKind::micro_batch:
      return {resource, 0, operation.micro_batch};
    case OwnerKind::block:
      return {resource, operation.block, operation.micro_batch};
    case OwnerKind::unit:
      return {resource, operation.unit, 0};
    case OwnerKind::leaf:
      return {resource, operation.unit, operation.micro_batch};
    case OwnerKind::level:
      return {resource, operation.unit, operation.level};
    case OwnerKind::value:
    case OwnerKind::step:
    case OwnerKind::buffer:
      break;
  }
  return {resource, 0, 0};
}

void ProgramEffects::add(const Effect& effect, const Operation& operation) {
  if (!applies(effect.when, operation)) return;
  const auto add_unit = [&](int unit) {
    if (!applies(effect.when, unit)) return;
    const bool leaves = resource_info(effect.resource).owner == OwnerKind::leaf;
    for (int m = 0; m < (leaves ? program_.micro_batches : 1); ++m)
      effects_.push_back({effect, {effect.resource, unit, m}});
  };
  const auto add_values = [&](const std::vector<int>& values) {
    for (const int value : values)
      if (effect.resource != Resource::value_gradient || element(program_.values, value).has_gradient())
        effects_.push_back({effect, {effect.resource, value, operation.micro_batch}});
  };
  switch (effect.selector) {
    case Selector::own: {
      if (operation.micro_batch < 0 && resource_info(effect.resource).owner == OwnerKind::leaf)
        return add_unit(operation.unit);
      const Instance instance = own_instance(effect.resource, operation);
      if (operation.unit < 0 || applies(effect.when, operation.unit)) effects_.push_back({effect, instance});
      return;
    }
    case Selector::inputs:
      return add_values(element(program_.blocks, operation.block).inputs);
    case Selector::outputs:
      return add_values(element(program_.blocks, operation.block).outputs);
    case Selector::kept:
      return add_values(element(program_.blocks, operation.block).kept);
    case Selector::sent:
      return add_values(element(program_.blocks, operation.block).sent);
    case Selector::returned:
      return add_values(element(program_.blocks, operation.block).returned);
    case Selector::arriving:
      return add_values(element(program_.blocks, operation.block).arriving);
    case Selector::leaving:
      return add_values(element(program_.blocks, operation.block).leaving);
    case Selector::block_units:
      for (const int unit : element(program_.blocks, operation.block).units) add_unit(unit);
      return;
    case Selector::trained:
      for (const int unit : element(program_.blocks, operation.block).units)
        if (element(program_.units, unit).trainable) add_unit(unit);
      return;
    case Selector::all_trained:
      for (int unit = 0; unit < std::ssize(program_.units); ++unit)
        if (element(program_.units, unit).trainable) add_unit(unit);
  }
}

const std::vector<InstanceEffect>& ProgramEffects::of(const Operation& operation) {
  effects_.clear();
  for (const Effect& effect : op_info(operation.kind).effects) add(effect, operation);
  return effects_;
}

const std::vector<InstanceEffect>& ProgramEffects::own(const Operation& operation) {
  effects_.clear();
  for (const Effect& effect : op_info(operation.kind).effects)
    if (!selects_units(effect.selector)) add(effect, operation);
  return effects_;
}

std::string ProgramEffects::noun(const Instance& instance) const {
  const auto [resource, owner, number] = instance;
  const ResourceInfo& row = resource_info(resource);
  std::string name;
  switch (row.owner) {
    case OwnerKind::micro_batch:
      name = format("micro-batch {}", number);
      break;
    case OwnerKind::value:
      name = format("{} on micro-batch {}", element(program_.values, owner).name, number);
      break;
    case OwnerKind::block:
      name = format("{} on micro-batch {}", element(program_.blocks, owner).name, number);
      break;
    case OwnerKind::leaf:
      name = format("{} of micro-batch {}", element(program_.units, owner).name, number);
      break;
    case OwnerKind::unit:
      name = element(program_.units, owner).name;
      break;
    case OwnerKind::level:
      name = format("level {} of the gradient of unit {}", number, element(program_.units, owner).name);
      break;
    case OwnerKind::buffer:
      name = element(program_.buffers, owner).name;
      break;
    case OwnerKind::step:
      break;
  }
  const std::size_t gap = row.noun.find("{}");
  std::string text(row.noun);
  return gap == std::string::npos ? text : text.replace(gap, 2, name);
}

}  // namespace stepforge
