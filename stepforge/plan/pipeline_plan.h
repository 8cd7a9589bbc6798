// SPDX-License-Identifier: Apache-2.0
// The pipeline of a job: which blocks each stage has, and what each rank computes in which order.
#pragma once

#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/schedule/schedule.h"
#include "stepforge/step/options.h"

namespace stepforge {

struct PipelinePlan {
  /// All blocks, with their stages; with tensor parallelism, this rank's parts of the tensors.
  ModelSpec model;
  Schedule schedule;
  int first_trained_stage = 0;  ///< the stages before it have frozen units only

  int ranks() const { return schedule.ranks(); }
  /// The stages of a pipeline rank, ascending.
  std::vector<int> stages_of(int member) const;
  /// The part of the model that a pipeline rank holds.
  ModelSpec part(int member) const;
  PipelineOptions options() const;
  /// The two ranks that hold a tied unit, if it has stages on both; otherwise nothing.
  TiedUnit tied_unit() const;
};

/// Whether the settings divide the model into pipeline stages.
bool has_stages(const Config& config);

/// The pipeline of `config` for the rank, which may be one rank alone. `whole`: the undivided model, whose costs balance the
/// stages; `divided`: the model with this rank's parts of its tensors. Throws UsageError if the degree, the stages, the
/// schedule or its file do not fit one another or the model. `schedule`, if given, is used instead of that of `config`.
PipelinePlan plan_pipeline(const Config& config, const ModelSpec& whole, ModelSpec divided, RankId rank,
                           const Schedule* schedule = nullptr);

}  // namespace stepforge
