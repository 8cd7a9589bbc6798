// SPDX-License-Identifier: Apache-2.0
// What a rank of a pipeline holds: the blocks of its stages and the units that these use.
#pragma once

#include <vector>

#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The number of stages of a model: the largest BlockSpec::stage, plus 1.
int stage_count(const ModelSpec& model);

/// The blocks of `stages` (ascending) in the order of the model, and the units that they use, numbered anew in
/// the order of the model. A unit that blocks on several ranks use, like a tied embedding, is in the part of
/// each. Everything else is the whole model's: layers and their names, sizes and ties, also those of other
/// stages. Throws Error if `stages` are not ascending or one of them has no block.
ModelSpec stage_part(const ModelSpec& whole, const std::vector<int>& stages);

}  // namespace stepforge
