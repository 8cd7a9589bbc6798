// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/param_patterns.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/name_pattern.h"

namespace stepforge {

namespace {

std::vector<NamePattern> compile(const OptimizerConfig& optimizer) {
  std::vector<NamePattern> patterns;
  for (const auto& group : optimizer.param_groups) {
    try {
      patterns.emplace_back(group.pattern);
    } catch (const FormatError& error) {
      throw UsageError(format("optimizer.param_groups: pattern \"{}\": {}", group.pattern, error.what()));
    }
  }
  return patterns;
}

}  // namespace

std::vector<std::vector<int>> match_param_groups(const OptimizerConfig& optimizer, const ModelSpec& model) {
  const std::vector<NamePattern> patterns = compile(optimizer);
  std::vector<bool> used(patterns.size(), false);
  std::vector<std::vector<int>> groups;
  for (const UnitSpec& unit : model.units) {
    std::vector<int>& of_unit = groups.emplace_back();
    for (const ParameterSpec& parameter : unit.parameters) {
      int group = -1;
      for (std::size_t p = 0; p < patterns.size() && group < 0; ++p)
        if (patterns[p].matches(parameter.name)) group = static_cast<int>(p);
      if (group >= 0) used[static_cast<std::size_t>(group)] = true;
      of_unit.push_back(group);
    }
  }
  for (std::size_t p = 0; p < patterns.size(); ++p) {
    if (used[p]) continue;
    throw UsageError(
        format("optimizer.param_groups: pattern \"{}\" matches no parameter, or only parameters that earlier "
               "patterns match; names look like \"{}\"",
               optimizer.param_groups[p].pattern, model.units.back().parameters.front().name));
  }
  return groups;
}

}  // namespace stepforge
