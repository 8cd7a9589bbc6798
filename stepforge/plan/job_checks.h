// SPDX-License-Identifier: Apache-2.0
// What is checked of a job before it runs, for all of its ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "stepforge/config/load.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/checker.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Refuses what training refuses of a configuration, for its model, before anything is read or allocated: patterns of
/// optimizer.param_groups that match nothing, debug.plant_nan_block. `train` and `plan` call it. Throws UsageError.
void check_job(const LoadedConfig& loaded, const ModelSpec& whole);

/// What is to be said of the learning-rate schedule of a run of `steps` steps: its warm-up is too long, or its decay is cut.
/// "" if nothing.
std::string schedule_warning(const Config& config, int64_t steps);

/// What is to be said of so many compute threads of a rank on a host with `cores` cores: "" if they are not more. `setting` names
/// where the number is from. Throws UsageError for so many that a step would not end.
std::string threads_warning(const std::string& setting, int64_t threads, int cores);

/// `model` must be the part of the rank of `layout`, and its values must fit together
/// (modelspec/value_types.h). Throws Error.
void check_specification(const ModelSpec& model, const RankLayout& layout);

/// Checks all ranks: each runs the operations of the program of its pipeline stage over its own groups. `programs` are
/// those of one pipeline, of which `layout` is one rank's. Throws ProgramError.
SymmetryProof prove_programs(std::span<const StepProgram> programs, const RankLayout& layout);

}  // namespace stepforge
