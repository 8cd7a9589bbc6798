// SPDX-License-Identifier: Apache-2.0
// What one rank of a job holds, as text.
#pragma once

#include <string>

#include "stepforge/config/config.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The rank's groups, its units (partition, dtypes, reductions), its part of every tensor, and the types of values
/// in every block (modelspec/value_types.h). Lines that differ only in the layer's number are merged. `part` is this
/// rank's part of the model, divided by the plan of `config`, with the units of `layout`. Throws ValueTypeError.
std::string layout_text(const ModelSpec& part, const RankLayout& layout, const Config& config);

}  // namespace stepforge
