// SPDX-License-Identifier: Apache-2.0
// Which parameters the patterns of optimizer.param_groups match.
#pragma once

#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// For each unit of `model` and each of its parameters: the index of the group in optimizer.param_groups, or -1 for none.
/// Patterns are ECMAScript regular expressions that are searched in the parameter's name ("layers.3.attention.qkv"); the
/// first that matches wins. Throws UsageError for a pattern that is not a regular expression or that matches nothing.
std::vector<std::vector<int>> match_param_groups(const OptimizerConfig& optimizer, const ModelSpec& model);

}  // namespace stepforge
