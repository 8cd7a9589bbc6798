// SPDX-License-Identifier: Apache-2.0
// The times of a pipeline's programs as times of the actions of its schedule.
#pragma once

#include <span>

#include "stepforge/schedule/schedule.h"
#include "stepforge/schedule/timeline.h"
#include "stepforge/step/program.h"
#include "stepforge/step/simulate_pipeline.h"

namespace stepforge {

/// The run in terms of `schedule`, from which `programs` were written, to be drawn: an action lasts from the
/// start of its first computation to the end of its last one. An action without computations, as in
/// stages of frozen units, takes no time. Activations are counted in stages, as simulate() counts them for
/// uniform_times().
Timeline timeline_of(std::span<const StepProgram> programs, const PipelineRun& run, const Schedule& schedule);

}  // namespace stepforge
