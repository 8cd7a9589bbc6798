// SPDX-License-Identifier: Apache-2.0
// `stepforge plan`: prints what a run will hold and do, without allocating a tensor.
#pragma once

#include <filesystem>
#include <iosfwd>

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/plan_text.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Prints the plan of a checked program to `out`; with `trace` also writes the predicted step there, as
/// trace-event JSON. Returns the exit code. Throws Error if the trace cannot be written.
int print_plan(const ModelSpec& model, const StepProgram& program, const PlanText& text,
               const std::filesystem::path& trace, std::ostream& out);

}  // namespace stepforge
