// SPDX-License-Identifier: Apache-2.0
// Lists of names of a whole model, cut down to what one stage of a pipeline has.
#pragma once

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/options.h"

namespace stepforge {

/// Drops the units, blocks, regions and calls that `whole` has but `part` has not from the lists of recomputation and
/// prefetching. Names that `whole` has not stay: building the step refuses them on every rank.
void keep_names_of_part(StepOptions& options, const ModelSpec& whole, const ModelSpec& part);

}  // namespace stepforge
