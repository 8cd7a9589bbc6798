// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/loss_kinds.h"
#include "stepforge/catalog/parallel_plans.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/plan/job_batch.h"
#include "stepforge/plan/job_mesh.h"

namespace stepforge {

namespace {

/// Adds what the loss of the configuration needs: of a plug-in, for each logit of a chunk, its gradient in fp32 and what the
/// loss declares; of pairs, a weight of each token; of distillation, the tokens of the teacher.
ModelSpec with_loss(ModelSpec model, const Config& config) {
  const LossKind loss = find_loss(config);
  for (BlockSpec& block : model.blocks) {
    for (Call& call : block.list.calls) {
      if (!call.is(kLoss)) continue;
      auto& attributes = std::any_cast<LossAttributes&>(call.attributes);
      if (loss.compute != nullptr) attributes.numbers_per_logit = 1 + loss.workspace_per_logit;
      attributes.pairs = config.preference.enabled();
      if (!config.distillation.enabled()) continue;
      attributes.soft_targets = config.distillation.top_k;
      attributes.softened = config.distillation.temperature != 1.0;
    }
  }
  return model;
}

RankLayout layout_of(const Job& job, RankId rank) {
  const ParallelismConfig& parallelism = job.config.parallelism;
  ParallelPlan plan{.dims = plan_dims(job.config, rank.world_size),
                    .partition = {parallelism.fsdp_partition},
                    .gather = job.config.precision.compute,
                    .reduce = job.config.precision.reduce,
                    .tied = job.pipeline.tied_unit(),
                    .offload = parallelism.fsdp_cpu_offload};
  for (const UnitSpec& unit : job.model().units) plan.units.push_back(unit.name);
  return rank_layout(job.part.units, plan, rank);
}

/// Sets what `rank` holds of the job.
void set_rank(Job& job, RankId rank) {
  const int ranks_of_stage = std::max(1, rank.world_size / std::max(1, job.pipeline.ranks()));
  job.part = job.pipeline.part(rank.rank / ranks_of_stage);
  job.layout = layout_of(job, rank);
  job.batch = plan_batch(job.config, job.layout);
  job.batch.ahead = job.whole.ahead;
}

}  // namespace

Job plan_job(Config config, RankId rank, ModelSpec whole, ModelSpec divided, const Schedule* schedule) {
  Job job;
  job.config = std::move(config);
  job.whole = std::move(whole);
  job.pipeline = plan_pipeline(job.config, job.whole, std::move(divided), rank, schedule);
  set_rank(job, rank);
  return job;
}

Job plan_job(Config config, RankId rank, const Schedule* schedule) {
  ModelSpec whole = plan_model(config);
  ModelSpec divided = plan_divided_model(config, rank);
  return plan_job(std::move(config), rank, std::move(whole), std::move(divided), schedule);
}

Job Job::at(int member) const {
  Job other = *this;
  if (member != layout.index_in(layout.pipeline_group)) {
    const int rank = element(element(layout.groups, layout.pipeline_group).ranks, member);
    set_rank(other, {rank, layout.id.world_size});
  }
  return other;
}

namespace {

ModelSpec adapted(const Config& config, ModelSpec model) {
  add_adapters(model, config.adapter, storage_of(config.model));
  return model;
}

}  // namespace

ModelSpec plan_model(const Config& config) {
  if (config.metrics.router == RouterMetrics::experts && family_of(config.model).expert_names == nullptr) {
    throw UsageError(
        format("metrics.router = \"experts\": models of the family \"{}\" have no experts; set it to "
               "\"summary\" or choose another model.family",
               config.model.family));
  }
  return with_loss(adapted(config, model_spec(config.model, config.training.loss_chunk)), config);
}

ModelSpec plan_divided_model(const Config& config, RankId rank, bool all_rows) {
  ExpertParallel experts = plan_experts(config, rank);
  experts.all_rows = all_rows;
  return with_loss(
      adapted(config, model_spec(config.model, config.training.loss_chunk, plan_tensor(config, rank),
                                 plan_context(config), tensor_plan(config), experts)),
      config);
}

}  // namespace stepforge
