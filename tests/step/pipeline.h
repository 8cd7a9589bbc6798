// SPDX-License-Identifier: Apache-2.0
// The programs of pipelines of the small model.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/stage_part.h"
#include "stepforge/schedule/generators.h"
#include "stepforge/step/build.h"
#include "tests/step/fixture.h"

namespace stepforge::testing {

/// `stages` of about equally many blocks; those after the first head are in its stage.
inline ModelSpec staged(ModelSpec model, int stages) {
  const auto head = std::ranges::find(model.blocks, BlockKind::head, &BlockSpec::kind);
  const auto blocks = static_cast<int>(head - model.blocks.begin()) + 1;
  for (int b = 0; b < std::ssize(model.blocks); ++b)
    element(model.blocks, b).stage = std::min(b * stages / blocks, stages - 1);
  return model;
}

/// What `schedule` gives to a rank.
inline ModelSpec part_of(const ModelSpec& whole, const Schedule& schedule, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage)
    if (element(schedule.rank_of_stage, stage) == rank) stages.push_back(stage);
  return stage_part(whole, stages);
}

/// The program of each rank. `options` has the plan of one stage; `schedule` has options.micro_batches.
inline std::vector<StepProgram> pipeline_programs(const ModelSpec& whole, RankOptions options,
                                                  const Schedule& schedule) {
  const ModelSpec model = staged(whole, schedule.stages());
  options.plan.dims.pp = schedule.ranks();
  options.pipeline.schedule = schedule;
  for (const UnitSpec& unit : whole.units) options.plan.units.push_back(unit.name);
  const ParallelDims& dims = options.plan.dims;
  const auto in_stage = static_cast<int>(dims.dp_replicate * dims.dp_shard * dims.cp * dims.tp);
  std::vector<StepProgram> programs;
  for (int rank = 0; rank < in_stage * schedule.ranks(); ++rank) {
    const ModelSpec part = part_of(model, schedule, rank / in_stage);
    programs.push_back(build_step(
        part, rank_layout(part.units, options.plan, {rank, in_stage * schedule.ranks()}), options));
  }
  return programs;
}

/// Of one rank per stage, or of several stages on each rank.
inline std::vector<StepProgram> pipeline(ScheduleKind kind, int ranks, int stages_per_rank, int micro_batches,
                                         int layers) {
  RankOptions options = small_options(micro_batches);
  options.plan.dims.dp_shard = 1;
  return pipeline_programs(small_model(layers), options,
                           make_schedule(kind, ranks, stages_per_rank, micro_batches));
}

}  // namespace stepforge::testing
