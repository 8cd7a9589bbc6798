// SPDX-License-Identifier: Apache-2.0
// What is checked of a job before it runs, for all of its ranks.
#pragma once

#include <span>

#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// `model` must be the part of the rank of `layout`, and its values must fit together
/// (modelspec/value_types.h). Throws Error.
void check_specification(const ModelSpec& model, const RankLayout& layout);

/// Checks all ranks: each runs the operations of the program of its pipeline stage over its own groups. `programs` are
/// those of one pipeline, of which `layout` is one rank's. Throws ProgramError.
SymmetryProof prove_programs(std::span<const StepProgram> programs, const RankLayout& layout);

}  // namespace stepforge
