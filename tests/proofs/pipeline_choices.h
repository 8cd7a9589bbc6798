// SPDX-License-Identifier: Apache-2.0
// Pipelines of every schedule, as overrides of a job.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "stepforge/schedule/generators.h"
#include "tests/proofs/compare_runs.h"

namespace stepforge::testing {

/// A schedule on `ranks` ranks.
struct PipelineCase {
  std::string schedule;
  int ranks = 1;
  int stages_per_rank = 1;

  int stages() const { return ranks * stages_per_rank; }
  /// At least three layers.
  int layers_per_stage() const {
    if (stages() >= 6) return 1;
    return stages() >= 4 ? 2 : stages() >= 2 ? 3 : 5;
  }
  /// Embedding and head count as a layer each.
  int layers() const { return layers_per_stage() * stages() - 2; }
};

inline Strings overrides_of(const PipelineCase& pipeline) {
  return {format("model.n_layers={}", pipeline.layers()),
          format("parallelism.pipeline_parallel_degree={}", pipeline.ranks),
          "parallelism.pipeline_parallel_schedule=" + pipeline.schedule,
          format("parallelism.pipeline_parallel_layers_per_stage={}", pipeline.layers_per_stage())};
}

/// Every schedule on every number of `ranks`, with 1 to 3 stages per rank where it takes them.
inline std::vector<PipelineCase> pipeline_cases(const std::vector<int>& ranks) {
  std::vector<PipelineCase> cases;
  for (const ScheduleKind& kind : schedule_kinds()) {
    const std::string name(kind.name);
    const auto [min, max] = kind.stages;
    for (const int count : ranks)
      for (int stages = min; stages <= std::min(max, 3); ++stages) cases.push_back({name, count, stages});
  }
  return cases;
}

}  // namespace stepforge::testing
