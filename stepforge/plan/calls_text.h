// SPDX-License-Identifier: Apache-2.0
// The calls of a model's blocks, for people.
#pragma once

#include <span>
#include <string>

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// The blocks in forward order, those of equal calls together: of each call its results, operands and weights, the width of its
/// first result, and its attributes. `blocks`: those of the step program, if there is one, whose backward makes some calls again.
std::string calls_text(const ModelSpec& model, std::span<const ProgramBlock> blocks = {});

}  // namespace stepforge
