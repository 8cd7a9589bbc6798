// SPDX-License-Identifier: Apache-2.0
// The blocks of a decoder's layer whose experts are spread over ranks, as modelspec/expert_values.h has them.
#pragma once

#include "stepforge/catalog/expert_layers.h"
#include "stepforge/modelspec/expert_values.h"

namespace stepforge {

/// Adds the blocks of a layer to `spec`, and two units: layers.3.experts has the experts of this rank, layers.3 all else.
/// `hidden` passes between layers.
void add_expert_blocks(ModelSpec& spec, const BundleEntry& hidden, int layer, LayerSpec attention,
                       ExpertParts parts, const ExpertDims& dims, const ExpertParallel& parallel);

}  // namespace stepforge
