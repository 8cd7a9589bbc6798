// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/model_state.h"

#include <algorithm>
#include <map>
#include <utility>

#include "stepforge/fsdp/unit_tree.h"

namespace stepforge {

namespace {

/// Adds parameters as entries of their units.
class UnitEntries {
 public:
  explicit UnitEntries(StateSource& source) : source_(source) {}

  void add(const std::string& name, const FsdpParamGroup& group, size_t index) {
    const auto [known, is_new] = units_.try_emplace(&group, static_cast<int>(source_.units.size()));
    if (is_new) source_.units.push_back({&group.store(), group.store().master()});
    source_.entries.push_back({name, known->second, index, {}, !group.trained(index)});
  }

 private:
  StateSource& source_;
  std::map<const FsdpParamGroup*, int> units_;
};

/// Adds the names under which a unit uses parameters of other units.
void add_tied(const UnitEntry& entry, UnitEntries& entries) {
  for (const NamedParameter& tied : entry.unit->tied) {
    for (const auto& owner : entry.unit->borrowed) {
      for (const auto& group : owner->param_groups()) {
        for (size_t i = 0; i < group->parameters().size(); ++i) {
          if (group->parameters()[i].tensor.is_same(tied.tensor))
            entries.add(entry.prefix + tied.name, *group, i);
        }
      }
    }
  }
}

StateSource source_of(const ShardedModule& module) {
  StateSource source;
  source.all = module.unit()->mesh().all_ranks();
  source.tensor_ranks = module.unit()->mesh().tensor_ranks();
  const torch::nn::Module& root = *module.module();
  UnitEntries entries(source);
  for (const FsdpParamRef& parameter : sharded_parameters(root)) {
    entries.add(parameter.name, *parameter.group, parameter.index);
    for (const std::string& alias : parameter.aliases) entries.add(alias, *parameter.group, parameter.index);
  }
  for (const UnitEntry& entry : units_in(root)) add_tied(entry, entries);
  for (const auto& [name, tensor] : unsharded_parameters(root))
    source.entries.push_back({name, -1, 0, tensor, !tensor.requires_grad()});
  for (const auto& buffer : root.named_buffers())
    source.entries.push_back({buffer.key(), -1, 0, buffer.value()});
  return source;
}

}  // namespace

StateDict get_state_dict(const ShardedModule& module, const GetStateOptions& options) {
  return get_state_dict(source_of(module), options);
}

LoadReport load_state_dict(const ShardedModule& module, const StateDict& values,
                           const LoadStateOptions& options) {
  const StateSource source = source_of(module);
  const std::vector<UnitEntry> units = units_in(*module.module());
  for (const UnitEntry& entry : units)
    entry.unit->wait_for_gather();  // a gather must not read masters while they are written
  LoadReport report = load_state_dict(source, values, options);
  for (const UnitEntry& entry : units) {
    for (const auto& group : entry.unit->param_groups()) group->masters_changed();
    std::erase_if(entry.unit->without_value, [&](const std::string& name) {
      return std::binary_search(report.loaded.begin(), report.loaded.end(), entry.prefix + name);
    });
  }
  return report;
}

}  // namespace stepforge
