// SPDX-License-Identifier: Apache-2.0
// What differs between two configurations, field by field, and what that means for a run that is resumed.
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

/// The fields of `schema` that differ between two objects of its struct, in the order of the schema. Nested
/// tables are compared field by field, lists as a whole. `before` and `after` are only read.
std::vector<FieldDifference> diff(const TableSchema& schema, void* before, void* after);

std::vector<FieldDifference> diff(Config before, Config after);

}  // namespace stepforge
