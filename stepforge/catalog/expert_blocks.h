// SPDX-License-Identifier: Apache-2.0
// The blocks of a decoder's layer whose experts are spread over ranks, as modelspec/expert_values.h has them.
#pragma once

#include <string>
#include <vector>

#include "stepforge/catalog/expert_layers.h"
#include "stepforge/modelspec/expert_values.h"

namespace stepforge {

/// Adds the parameters of `layers` to `spec` as the unit `name`, and those of layers that take slices of the tokens as the
/// unit `name`.mlp. Returns the numbers of these units, of which there may be one.
std::vector<int> add_units(ModelSpec& spec, const std::string& name, const std::vector<LayerSpec*>& layers);

/// Appends what a layer computes to what the block does.
void add_lists(BlockSpec& block, LayerSpec layer);

/// Adds the blocks of a layer to `spec`, the unit layers.3.experts, which has the experts of this rank, and those of all
/// else (add_units()). `hidden` passes between layers.
void add_expert_blocks(ModelSpec& spec, const BundleEntry& hidden, int layer, LayerSpec attention,
                       ExpertParts parts, const ExpertDims& dims, const ExpertParallel& parallel);

}  // namespace stepforge
