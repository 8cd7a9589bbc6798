// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/frozen_units.h"

#include <algorithm>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/name_pattern.h"

namespace stepforge {

namespace {

/// A pattern of model.freeze, and whether it has matched.
struct FreezePattern {
  std::string text;
  NamePattern whole;
  bool used = false;

  bool matches(const std::string& name) {
    const bool found = whole.matches(name);
    used = used || found;
    return found;
  }
};

std::vector<FreezePattern> patterns_of(std::span<const std::string> texts) {
  std::vector<FreezePattern> patterns;
  for (const std::string& text : texts) {
    try {
      patterns.push_back({text, NamePattern("^(?:" + text + ")$")});
    } catch (const FormatError& fault) {
      throw UsageError(format("model.freeze: \"{}\" is {}", text, fault.what()));
    }
  }
  return patterns;
}

}  // namespace

void freeze_units(ModelSpec& model, std::span<const std::string> texts, DType master) {
  if (texts.empty()) return;
  std::vector<FreezePattern> patterns = patterns_of(texts);
  const auto any_matches = [&](const std::string& name) {
    bool found = false;
    for (FreezePattern& pattern : patterns) found = pattern.matches(name) || found;
    return found;
  };
  for (UnitSpec& unit : model.units) {
    const bool whole = any_matches(unit.name);
    std::string frozen;
    std::string trained;
    for (const ParameterSpec& parameter : unit.parameters)
      (any_matches(parameter.name) ? frozen : trained) = parameter.name;
    if (!whole && !frozen.empty() && !trained.empty()) {
      throw UsageError(
          format("model.freeze freezes {} but not {}: both are in the unit {}, which is trained or frozen as "
                 "a whole; name the unit",
                 frozen, trained, unit.name));
    }
    if (!whole && (!trained.empty() || frozen.empty())) continue;
    unit.trainable = false;
    if (!unit.state) unit.master = master;
  }
  for (const FreezePattern& pattern : patterns) {
    if (pattern.used) continue;
    std::vector<std::string> names;
    for (const UnitSpec& unit : model.units) names.push_back(unit.name);
    throw UsageError(format("model.freeze: \"{}\" matches no unit and no parameter; the units are {}",
                            pattern.text, join(names, ", ")));
  }
  if (std::ranges::none_of(model.units, &UnitSpec::trainable))
    throw UsageError("model.freeze freezes every unit: there is nothing to train; leave out at least one");
}

}  // namespace stepforge
