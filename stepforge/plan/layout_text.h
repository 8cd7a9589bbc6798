// SPDX-License-Identifier: Apache-2.0
// What one rank of a job holds, as text.
#pragma once

#include <string>

#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The rank's groups, its units (partition, dtypes, reductions) and its part of every tensor. Units and tensors
/// that differ in their layer's number only are one line. `part` is this rank's part of the model, with the units
/// of `layout`.
std::string layout_text(const ModelSpec& part, const RankLayout& layout);

}  // namespace stepforge
