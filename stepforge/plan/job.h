// SPDX-License-Identifier: Apache-2.0
// A job as one of its ranks sees it, planned from the configuration once and without tensors. The trainer, `stepforge plan`
// and `stepforge prove` use the same plan.
#pragma once

#include "stepforge/config/config.h"
#include "stepforge/data/batch_layout.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/plan/pipeline_plan.h"

namespace stepforge {

struct Job {
  Config config;
  ModelSpec whole;  ///< the model before it is divided
  PipelinePlan
      pipeline;    ///< the stages of model(), and what each rank of the pipeline computes in which order
  ModelSpec part;  ///< what this rank holds of the model
  RankLayout layout;
  BatchLayout batch;

  /// All blocks, with this rank's parts of divided tensors.
  const ModelSpec& model() const { return pipeline.model; }
  /// The job as the rank sees it that has the stages of `member` in this rank's pipeline.
  Job at(int member) const;
};

/// Throws UsageError if the degrees, the batch, the stages or the schedule do not fit one another, the model or the
/// number of ranks. `schedule`, if given, is used instead of that of `config`.
Job plan_job(Config config, RankId rank = {}, const Schedule* schedule = nullptr);

/// The same for a specification of your own. `divided`: with this rank's parts of its tensors.
Job plan_job(Config config, RankId rank, ModelSpec whole, ModelSpec divided,
             const Schedule* schedule = nullptr);

/// The specification of config.model. Throws UsageError if model.vocab_size is 0 and no tokenizer gives it.
ModelSpec plan_model(const Config& config);

/// The same with this rank's parts of tensors that are divided. Throws UsageError also as plan_dims() does, or if a degree
/// does not fit the model. With `all_rows` its costs assume that as many rows of tokens as possible come to this rank's
/// experts, instead of even loads.
ModelSpec plan_divided_model(const Config& config, RankId rank, bool all_rows = false);

}  // namespace stepforge
