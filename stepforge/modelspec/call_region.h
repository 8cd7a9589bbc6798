// SPDX-License-Identifier: Apache-2.0
// A list of calls as a region (cost.h): what the rules of value types read.
#pragma once

#include "stepforge/modelspec/cost.h"

namespace stepforge {

/// The region `name` of these lists, which may be empty.
RegionSpec region_of(std::string name, CallList list, CallList generation);

}  // namespace stepforge
