// SPDX-License-Identifier: Apache-2.0
// Which hyper-parameters each parameter has: groups by name pattern, turned into a sorted table of intervals
// per unit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/kernels/adamw.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The settings of one group, everything resolved.
struct ParamGroup {
  std::string name;  ///< the pattern, or "default", "default, no decay"
  AdamWOptions options;

  bool operator==(const ParamGroup&) const = default;
};

/// Parameters [first, last) of a unit belong to `group`.
struct ParamInterval {
  size_t first = 0;
  size_t last = 0;
  int group = 0;
};

struct ParamGroups {
  std::vector<ParamGroup> groups;
  std::vector<std::vector<ParamInterval>> intervals;  ///< per unit, sorted; empty for a frozen unit
};

/// Patterns are ECMAScript regular expressions searched in the parameter's name ("layers.3.attention.qkv");
/// the first that matches wins, and a parameter that none matches has the section's own values. Norms and
/// biases do not decay unless decay_all is set or a group sets weight_decay itself. Throws UsageError for a
/// pattern that is not a regular expression or that matches nothing.
ParamGroups resolve_param_groups(const OptimizerConfig& optimizer, const ModelSpec& model);

}  // namespace stepforge
