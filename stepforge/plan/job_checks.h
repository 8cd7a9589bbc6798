// SPDX-License-Identifier: Apache-2.0
// Checks of a job before it runs, for all of its ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "stepforge/config/load.h"
#include "stepforge/plan/job.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Refuses settings that do not fit the model, before anything is read or allocated: patterns of optimizer.param_groups
/// that match nothing, debug.plant_nan_block. `train` and `plan` call it. Throws UsageError.
void check_job(const LoadedConfig& loaded, const ModelSpec& whole);

/// A warning about the learning-rate schedule of a run of `steps` steps: its warm-up is too long, or its decay is cut off.
/// "" if there is none.
std::string schedule_warning(const Config& config, int64_t steps);

/// A warning if a rank has more compute threads than its host has cores, else "". `setting` names where the number is
/// from. Throws UsageError if a step would not end with that many.
std::string threads_warning(const std::string& setting, int64_t threads, int cores);

/// The model must be divided as the mesh is, and its values must fit together (modelspec/value_types.h). Throws Error.
void check_specification(const Job& job);

/// Checks all ranks: each runs the operations of the program of its pipeline stage over its own groups. `programs` are
/// those of one pipeline; `layout` is that of one of its ranks. Throws ProgramError.
SymmetryProof prove_programs(std::span<const StepProgram> programs, const RankLayout& layout);

}  // namespace stepforge
