// `stepforge plan`: prints what a run will hold and do, without allocating a tensor.
#pragma once

#include <filesystem>
#include <iosfwd>

#include "spec/model_spec.h"
#include "step/build.h"
#include "step/plan.h"

namespace stepforge {

struct PlanOptions {
  ModelSpec model;
  StepOptions step;
  PlanText text;
  std::filesystem::path trace;  ///< where the predicted step's trace-event JSON goes; none if empty
};

/// Builds the step program, proves it, prints the plan to `out`. Returns the exit code. Throws UsageError for
/// options that do not fit the model, Error if the trace cannot be written.
int plan_command(const PlanOptions& options, std::ostream& out);

}  // namespace stepforge
