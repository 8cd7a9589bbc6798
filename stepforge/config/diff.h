// SPDX-License-Identifier: Apache-2.0
// The differences between two configurations, field by field, and what they mean on resume.
#pragma once

#include <string>
#include <vector>

#include "stepforge/config/schema.h"

namespace stepforge {

struct FieldDifference {
  std::string name;    ///< "training.seed"
  std::string before;  ///< as TOML
  std::string after;
  OnResume on_resume;
};

/// The fields that differ, in the order of the schema; sections of plug-ins only if both have the same plug-ins. Nested tables are compared field by field, lists as a
/// whole.
std::vector<FieldDifference> diff(Config before, Config after);

}  // namespace stepforge
