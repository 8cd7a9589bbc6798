// SPDX-License-Identifier: Apache-2.0
// Which weights of a model are not trained.
#pragma once

#include <span>
#include <string>

#include "stepforge/base/dtype.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// Freezes every unit of which a pattern matches the whole name, or of which the patterns match the whole names of all
/// parameters ("layers\.[01]\..*"). A unit is stored, reduced and updated as one, so part of it cannot be frozen. Throws
/// UsageError if that is asked for, if a pattern matches nothing or is no regular expression, or if nothing is left to
/// train. Frozen weights are stored as `master`.
void freeze_units(ModelSpec& model, std::span<const std::string> patterns, DType master);

}  // namespace stepforge
