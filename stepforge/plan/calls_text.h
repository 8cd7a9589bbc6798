// SPDX-License-Identifier: Apache-2.0
// The calls of a model's blocks, for people.
#pragma once

#include <string>

#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The blocks in forward order, those of equal calls together: of each call its results, operands and weights, the width of its
/// first result, and its attributes. A block of tensor operations names what its cost counts.
std::string calls_text(const ModelSpec& model);

}  // namespace stepforge
