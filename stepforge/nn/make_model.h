// SPDX-License-Identifier: Apache-2.0
// A model from its blocks.
#pragma once

#include <memory>
#include <vector>

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/call_entries.h"

namespace stepforge {

/// The forward code of `blocks`, those of a ModelSpec or of a part of it, bound to `parameters`, which are looked up by the names
/// of the specification. A block computes the same whichever others are built. Throws Error if a block is no list of calls.
Model make_model(const std::vector<BlockSpec>& blocks, const ParameterLookup& parameters,
                 const std::shared_ptr<const LayerResources>& resources);

}  // namespace stepforge
