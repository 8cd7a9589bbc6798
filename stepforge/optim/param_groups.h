// SPDX-License-Identifier: Apache-2.0
// The hyper-parameters of each parameter: groups by name pattern, as a sorted table of intervals per unit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stepforge/catalog/optimizer_kinds.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/optim/update_rule.h"

namespace stepforge {

/// The settings of one group, with defaults filled in.
struct ParamGroup {
  std::string name;  ///< the pattern, or "default", "default, no decay"
  UpdateOptions options;

  bool operator==(const ParamGroup&) const = default;
};

/// Parameters [first, last) of a unit belong to `group`.
struct ParamInterval {
  size_t first = 0;
  size_t last = 0;
  int group = 0;
};

struct ParamGroups {
  OptimizerChoice optimizer;
  std::vector<ParamGroup> groups = {};
  std::vector<UpdateRule> rules = {};                      ///< of each group
  std::vector<std::vector<ParamInterval>> intervals = {};  ///< per unit, sorted; empty for a frozen unit
};

/// Patterns are ECMAScript regular expressions that are searched in the parameter's name
/// ("layers.3.attention.qkv"). The first that matches wins; without a match a parameter has the values of the
/// [optimizer] section. Norms and biases do not decay unless decay_all is set or their group sets
/// weight_decay. `units` are the units of `whole` on this rank of a pipeline, which `intervals` cover; patterns
/// and groups cover all units and are the same on all ranks. Throws UsageError for a pattern that is not a regular
/// expression or that matches nothing, and for an optimizer that neither the program nor a plug-in (`extensions`) has;
/// Error for a unit that is not in `whole`.
ParamGroups resolve_param_groups(const OptimizerConfig& optimizer, const ModelSpec& whole,
                                 const std::vector<UnitSpec>& units, const Extensions& extensions = {});

/// The same for all units of a model.
ParamGroups resolve_param_groups(const OptimizerConfig& optimizer, const ModelSpec& model,
                                 const Extensions& extensions = {});

}  // namespace stepforge
