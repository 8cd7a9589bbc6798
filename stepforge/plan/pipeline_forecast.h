// SPDX-License-Identifier: Apache-2.0
// The predictions of `stepforge plan` for the pipeline of a job.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "stepforge/plan/step_plan.h"
#include "stepforge/schedule/schedule.h"
#include "stepforge/step/simulate_pipeline.h"

namespace stepforge {

/// The name of the schedule that a job runs, or the path of its CSV file.
std::string schedule_title(const ParallelismConfig& parallelism);

/// A line with schedule, stages and micro-batches; a table with the stages, blocks, FLOPs, peak memory and
/// bubble of each rank of the pipeline; and lines with the step's bubble and critical path. `run` is of
/// step.stages.
std::string pipeline_text(const Job& job, const ProvedStep& step, const PipelineRun& run);

/// All schedules for a job.
struct ScheduleComparison {
  /// Stages per rank, predicted bubble and time of the step, and peak memory of the rank that needs most. A schedule
  /// that does not fit the job has the reason instead.
  std::string table;
  std::string fastest;  ///< the name of the fastest one within the memory; "" if there is none
  Schedule schedule;    ///< the fastest schedule
};

/// Compares the schedules that have names, that of the job's CSV file if it has one, and zero-bubble schedules made for
/// the predicted times of this job's stages (schedule/zero_bubble.h): ZB-1p with the activations of 1F1B, and the one
/// with the most activations, up to twice as many, that `memory` bytes of a rank allow: ZB-2p. Throws UsageError if the
/// job has no pipeline.
ScheduleComparison compare_schedules(const Config& config, RankId rank, const MachineModel& machine,
                                     int64_t memory = std::numeric_limits<int64_t>::max());

}  // namespace stepforge
