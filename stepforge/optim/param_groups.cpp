// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/param_groups.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/param_patterns.h"

namespace stepforge {

namespace {

double or_default(double value, double fallback) {
  return value < 0.0 ? fallback : value;
}

ParamGroup settings_of(const OptimizerConfig& optimizer, const OptimizerKind& kind,
                       const ParamGroupConfig* group, const ParameterSpec& parameter) {
  const double decay = parameter.decays() || optimizer.decay_all ? optimizer.weight_decay : 0.0;
  UpdateOptions options{.optimizer = std::string(kind.name),
                        .lr = optimizer.lr,
                        .beta1 = optimizer.beta1,
                        .beta2 = optimizer.beta2,
                        .eps = optimizer.eps,
                        .weight_decay = decay,
                        .momentum = optimizer.momentum,
                        .nesterov = optimizer.nesterov,
                        .muon_scale = optimizer.muon_scale,
                        .muon_iterations = optimizer.muon_iterations,
                        .muon_compute = optimizer.muon_compute};
  // Groups of one name differ in what follows it.
  const std::string rate = parameter.lr_factor == 1.0 ? "" : format(", lr x {}", parameter.lr_factor);
  options.lr = (group == nullptr ? options.lr : or_default(group->lr, options.lr)) * parameter.lr_factor;
  if (group == nullptr)
    return {(decay == optimizer.weight_decay ? "default" : "default, no decay") + rate, options};
  options.beta1 = or_default(group->beta1, options.beta1);
  options.beta2 = or_default(group->beta2, options.beta2);
  options.weight_decay = or_default(group->weight_decay, options.weight_decay);
  return {group->pattern + rate, options};
}

int index_of(std::vector<ParamGroup>& groups, const ParamGroup& group) {
  const auto found = std::find(groups.begin(), groups.end(), group);
  if (found != groups.end()) return static_cast<int>(found - groups.begin());
  groups.push_back(group);
  return static_cast<int>(groups.size()) - 1;
}

}  // namespace

ParamGroups resolve_param_groups(const OptimizerConfig& optimizer, const ModelSpec& model,
                                 const Extensions& extensions) {
  const std::vector<std::vector<int>> matched = match_param_groups(optimizer, model);
  ParamGroups result{.optimizer = OptimizerChoice(optimizer, extensions)};
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    auto& intervals = result.intervals.emplace_back();
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const ParameterSpec& parameter = unit.parameters[i];
      const int match = matched[u][i];
      const ParamGroupConfig* chosen =
          match < 0 ? nullptr : &optimizer.param_groups[static_cast<size_t>(match)];
      if (!unit.trainable) continue;
      const OptimizerKind& kind = result.optimizer.of(parameter);
      const int group = index_of(result.groups, settings_of(optimizer, kind, chosen, parameter));
      if (result.rules.size() < result.groups.size())
        result.rules.push_back(make_update_rule(kind, result.groups.back().options, extensions));
      if (!intervals.empty() && intervals.back().group == group) {
        intervals.back().last = i + 1;
      } else {
        intervals.push_back({i, i + 1, group});
      }
    }
  }
  return result;
}

ParamGroups resolve_param_groups(const OptimizerConfig& optimizer, const ModelSpec& whole,
                                 const std::vector<UnitSpec>& units, const Extensions& extensions) {
  const ParamGroups of_whole = resolve_param_groups(optimizer, whole, extensions);
  ParamGroups result = of_whole;
  result.intervals.clear();
  for (const UnitSpec& unit : units) {
    const auto found = std::ranges::find(whole.units, unit.name, &UnitSpec::name);
    if (found == whole.units.end()) throw Error(format("the model has no unit \"{}\"", unit.name));
    result.intervals.push_back(of_whole.intervals.at(static_cast<size_t>(found - whole.units.begin())));
  }
  return result;
}

}  // namespace stepforge
