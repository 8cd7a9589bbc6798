// SPDX-License-Identifier: Apache-2.0
// What `stepforge plan` says of the pipeline of a job before it runs.
#pragma once

#include <string>

#include "stepforge/config/config.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/plan/job_plan.h"
#include "stepforge/plan/pipeline_plan.h"
#include "stepforge/step/simulate_pipeline.h"

namespace stepforge {

/// The name of the schedule that a job runs, or the path of its CSV file.
std::string schedule_title(const ParallelismConfig& parallelism);

/// A line with schedule, stages and micro-batches; a table with the stages, blocks, FLOPs, peak memory and
/// bubble of each rank of the pipeline; and lines with the step's bubble and critical path. `run` is of
/// step.stages.
std::string pipeline_text(const std::string& title, const PipelinePlan& pipeline, const ProvedStep& step,
                          const PipelineRun& run);

/// A table of all schedules for this job, and the one of its CSV file if it has one: stages per rank,
/// predicted bubble and time of the step, and peak memory of the rank that needs most. A schedule that does
/// not fit has the reason instead. Throws UsageError if the job has no pipeline.
std::string schedule_comparison(const Config& config, RankId rank, const MachineModel& machine);

}  // namespace stepforge
