// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/pipeline_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/optimizer_kinds.h"
#include "stepforge/catalog/pipeline_stages.h"
#include "stepforge/modelspec/cost.h"
#include "stepforge/modelspec/stage_part.h"
#include "stepforge/plan/job_batch.h"
#include "stepforge/plan/job_mesh.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/schedule/check.h"
#include "stepforge/schedule/csv.h"
#include "stepforge/schedule/generators.h"
#include "stepforge/schedule/timeline.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

ScheduleKind kind_of(const Config& config) {
  return find_schedule(config.parallelism.pipeline_parallel_schedule, config.extensions.registry());
}

/// The schedule of the file, which must have the ranks and micro-batches of the job.
Schedule schedule_of_file(const ParallelismConfig& parallelism, int micro_batches) {
  const std::string& path = parallelism.pipeline_parallel_schedule_csv;
  Schedule schedule = read_schedule_csv(path);
  check_schedule(schedule);
  if (schedule.ranks() != parallelism.pipeline_parallel_degree) {
    throw UsageError(
        format("parallelism.pipeline_parallel_schedule_csv = \"{}\" is a schedule for {} ranks, but "
               "parallelism.pipeline_parallel_degree is {}; a line is a rank",
               path, schedule.ranks(), parallelism.pipeline_parallel_degree));
  }
  if (schedule.micro_batches != micro_batches) {
    throw UsageError(
        format("parallelism.pipeline_parallel_schedule_csv = \"{}\" is a schedule for {} micro-batches, but "
               "a step has {} on each rank; change training.global_batch_size or training.local_batch_size",
               path, schedule.micro_batches, micro_batches));
  }
  return schedule;
}

StagePlan stage_plan(const ParallelismConfig& parallelism) {
  StagePlan plan;
  const auto optional = [](int64_t value) { return value < 0 ? std::nullopt : std::optional(value); };
  plan.layers_per_stage = parallelism.pipeline_parallel_layers_per_stage;
  plan.first_stage_less_layers = optional(parallelism.pipeline_parallel_first_stage_less_layers);
  plan.last_stage_less_layers = optional(parallelism.pipeline_parallel_last_stage_less_layers);
  for (const StageConfig& stage : parallelism.pipeline_parallel_stages) plan.blocks.push_back(stage.blocks);
  return plan;
}

/// The stages per rank that the lists or the layers per stage give, or the fewest that the schedule takes.
int stages_per_rank_of(const Config& config, const ModelSpec& whole, const StagePlan& plan) {
  const ParallelismConfig& parallelism = config.parallelism;
  const auto ranks = static_cast<int>(parallelism.pipeline_parallel_degree);
  if (plan.blocks.empty() && plan.layers_per_stage == 0) return kind_of(config).stages.min;
  const int stages = planned_stages(whole, plan);
  if (stages % ranks != 0) {
    throw UsageError(
        format("{} pipeline stages do not divide into parallelism.pipeline_parallel_degree = {} ranks; "
               "change parallelism.pipeline_parallel_layers_per_stage or the list of stages",
               stages, ranks));
  }
  return stages / ranks;
}

Schedule schedule_of(const Config& config, const ModelSpec& whole, const StagePlan& plan, RankId rank) {
  const ParallelismConfig& parallelism = config.parallelism;
  const int micro_batches = plan_micro_batches(config, rank.world_size);
  if (!parallelism.pipeline_parallel_schedule_csv.empty())
    return schedule_of_file(parallelism, micro_batches);
  Schedule schedule =
      make_schedule(kind_of(config), static_cast<int>(parallelism.pipeline_parallel_degree),
                    stages_per_rank_of(config, whole, plan), micro_batches, config.extensions);
  check_schedule(schedule);
  return schedule;
}

/// The micro-batches of each stage that are forward but not wholly backward at the same time.
std::vector<int> alive_micro_batches(const Schedule& schedule) {
  std::vector<int> alive(schedule.rank_of_stage.size(), 0);
  std::vector<int> most = alive;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) {
      int& now = element(alive, action.stage);
      if (action.kind == ActionKind::forward) ++now;
      element(most, action.stage) = std::max(element(most, action.stage), now);
      if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) --now;
    }
  }
  return most;
}

/// The bytes of a unit's weights and optimizer state, and of its gradients in fp32.
double state_bytes(const OptimizerChoice& optimizer, const UnitSpec& unit) {
  const UnitSlots slots = optimizer.slots(unit);
  int64_t bytes = unit.scale_bytes();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const int64_t elements = unit.parameters[i].elements();
    bytes += unit.storage().bytes(elements) + (unit.trainable ? 4 * elements : 0);
    for (const SlotSpec& slot : slots[i]) bytes += slot.bytes(elements);
  }
  return static_cast<double>(bytes);
}

/// About what each block needs on a rank, before tensor parallelism, which divides all. All ranks get the same.
StageMemory stage_memory(const Config& config, const ModelSpec& whole, const Schedule& schedule,
                         RankId rank) {
  const ParallelismConfig& parallelism = config.parallelism;
  const int64_t parts = std::max<int64_t>(1, parallelism.context_parallel_degree);
  const int64_t replicas = parallelism.data_parallel_replicate_degree;
  const int64_t shards = replicas > 0 ? plan_data_ranks(config, rank.world_size) / replicas
                                      : parallelism.data_parallel_shard_degree;
  CostContext context;
  context.tokens = plan_batch(config, plan_data_ranks(config, rank.world_size)).rows_per_micro_batch *
                   config.training.seq_len / parts;
  context.document_length = config.training.seq_len;
  context.compute = config.precision.compute;
  context.parts = parts;
  const RecomputePolicy policy = plan_recomputation(config.activation_checkpoint);
  const std::vector<bool> recomputed = recomputed_blocks(whole, policy);
  const auto again = recomputed_parts(whole, policy, context);
  const OptimizerChoice optimizer(config.optimizer, config.extensions);
  StageMemory memory;
  for (std::size_t b = 0; b < whole.blocks.size(); ++b) {
    const BlockSpec& block = whole.blocks[b];
    double bytes = 0;
    for (const int unit : block.units) bytes += state_bytes(optimizer, element(whole.units, unit));
    memory.state.push_back(bytes / static_cast<double>(shards * parts));
    const BlockCost cost = block_cost(block, context, again[b]);
    // A head runs forward and backward at once.
    const int64_t saved = recomputed[b] || block.kind == BlockKind::head ? 0 : cost.saved_bytes;
    memory.activations.push_back(static_cast<double>(saved + cost.output_bytes));
  }
  memory.alive = alive_micro_batches(schedule);
  return memory;
}

/// How long the schedule takes with these stages, in the unit of `costs`: a third of a block's cost for F, I and W.
double makespan(const Schedule& schedule, const std::vector<int>& stages, const std::vector<double>& costs) {
  StageTimes times = uniform_times(schedule.stages(), 0, 0, 0);
  for (std::size_t b = 0; b < costs.size(); ++b) {
    StageTime& stage = element(times.stages, stages[b]);
    const double third = costs[b] / 3;
    stage.forward += third;
    stage.backward_input += third;
    stage.backward_weight += third;
    stage.backward += 2 * third;
  }
  return simulate(schedule, times).makespan;
}

/// The cut that saves memory, unless the schedule then takes longer than kStageCostTolerance allows: a rank may have
/// several stages, and balanced stages do not make balanced ranks.
std::vector<int> choose_stages(const Config& config, const ModelSpec& whole, const StagePlan& plan,
                               const Schedule& schedule, RankId rank) {
  const std::vector<double> costs = block_flops(whole, config.training.seq_len);
  std::vector<int> cheapest = stages_of_blocks(whole, plan, costs);
  std::vector<int> smallest =
      stages_of_blocks(whole, plan, costs, stage_memory(config, whole, schedule, rank));
  const double limit = makespan(schedule, cheapest, costs) * (1 + kStageCostTolerance);
  return makespan(schedule, smallest, costs) <= limit ? smallest : cheapest;
}

int first_trained_stage(const ModelSpec& model) {
  const auto trained = [&](const BlockSpec& block) {
    return std::ranges::any_of(block.units, [&](int unit) { return element(model.units, unit).trainable; });
  };
  const auto found = std::ranges::find_if(model.blocks, trained);
  if (found == model.blocks.end())
    throw UsageError("every unit of the model is frozen: there is nothing to train; unfreeze at least one");
  return found->stage;
}

}  // namespace

bool has_stages(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  return parallelism.pipeline_parallel_degree > 1 || !parallelism.pipeline_parallel_schedule_csv.empty() ||
         parallelism.pipeline_parallel_layers_per_stage > 0 ||
         !parallelism.pipeline_parallel_stages.empty() || kind_of(config).stages.min > 1;
}

std::vector<int> PipelinePlan::stages_of(int member) const {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage)
    if (element(schedule.rank_of_stage, stage) == member) stages.push_back(stage);
  return stages;
}

ModelSpec PipelinePlan::part(int member) const {
  return ranks() <= 1 ? model : stage_part(model, stages_of(member));
}

PipelineOptions PipelinePlan::options() const {
  return {.schedule = schedule, .first_trained_stage = first_trained_stage};
}

TiedUnit PipelinePlan::tied_unit() const {
  if (ranks() <= 1) return {};
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    std::vector<int> members;
    for (const BlockSpec& block : model.blocks)
      if (std::ranges::count(block.units, static_cast<int>(u)) > 0)
        members.push_back(element(schedule.rank_of_stage, block.stage));
    if (!members.empty() && members.front() != members.back())
      return {model.units[u].name, members.front(), members.back()};
  }
  return {};
}

PipelinePlan plan_pipeline(const Config& config, const ModelSpec& whole, ModelSpec divided, RankId rank,
                           const Schedule* schedule) {
  PipelinePlan plan;
  plan.model = std::move(divided);
  const ParallelismConfig& parallelism = config.parallelism;
  if (!has_stages(config)) return plan;
  StagePlan stages = stage_plan(parallelism);
  plan.schedule = schedule != nullptr ? *schedule : schedule_of(config, whole, stages, rank);
  stages.stages = plan.schedule.stages();
  if (stages.stages > 1) {
    set_stages(plan.model, choose_stages(config, whole, stages, plan.schedule, rank));
    plan.first_trained_stage = first_trained_stage(plan.model);
  }
  return plan;
}

}  // namespace stepforge
