// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/step_plan.h"

#include <algorithm>
#include <span>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/threads.h"
#include "stepforge/catalog/optimizer_kinds.h"
#include "stepforge/catalog/parallel_plans.h"
#include "stepforge/plan/job_checks.h"
#include "stepforge/plan/pass_kind.h"
#include "stepforge/plan/stage_names.h"
#include "stepforge/step/alternate.h"
#include "stepforge/step/build.h"
#include "stepforge/step/checker.h"

namespace stepforge {

namespace {

/// Throws UsageError if gradients are not sums over rows in one order.
void check_ordered_units(const Job& job) {
  const ParallelDims& dims = job.layout.dims;
  const std::vector<UnitSpec>& units = job.part.units;
  if (std::ranges::find(units, UnitMesh::experts, &UnitSpec::mesh) != units.end()) {
    throw UsageError(format(
        "training.reduction = \"ordered\", but parallelism.expert_parallel_degree = {} and "
        "expert_tensor_parallel_degree = {}: the gradient of an expert is a product of the tokens of several "
        "ranks at once, not a sum over rows in one order; use reduction = \"fast\", or set both degrees to 1",
        dims.ep, dims.etp));
  }
  const auto sliced = std::ranges::find(units, UnitMesh::slices, &UnitSpec::mesh);
  if (sliced != units.end()) {
    throw UsageError(
        format("training.reduction = \"ordered\", but parallelism.tensor_parallel_degree = {} with sequence "
               "parallelism: the gradient of {} is a sum over parts of rows; set "
               "parallelism.enable_sequence_parallel = false, or reduction = \"fast\"",
               dims.tp, sliced->name));
  }
}

/// Throws UsageError if experts are balanced within rows, but a rank has parts of rows.
void check_balanced_rows(const Job& job) {
  const BatchLayout& batch = job.batch;
  const double weight = job.config.model.router_aux_loss_weight;
  if (weight == 0.0 || batch.rows_per_micro_batch % batch.slices == 0) return;
  throw UsageError(format(
      "parallelism.tensor_parallel_degree = {} with sequence parallelism, but model.router_aux_loss_weight "
      "= {} and a micro-batch has {} rows: experts are balanced within whole rows, "
      "so a rank's slice must consist of whole rows; set training.local_batch_size (in a pipeline "
      "parallelism.pipeline_parallel_microbatch_size) to a multiple of the degree, or the weight to 0",
      batch.slices, weight, batch.rows_per_micro_batch));
}

/// On one rank, gathered units stay whole, unless their state is offloaded.
GatherPolicy gather_policy(const Job& job) {
  GatherPolicy policy;
  const ParallelismConfig& parallelism = job.config.parallelism;
  // Set even if nothing is sharded, so that wrong unit names are refused in every layout.
  for (const PrefetchListConfig& list : parallelism.fsdp_prefetch_lists)
    policy.prefetch.lists.push_back({list.unit, list.forward, list.backward});
  for (const UnitSpec& unit : job.part.units)
    if (unit.storage().coded()) policy.released.push_back(unit.name);
  const auto is_sharded = [](const UnitLayout& unit) { return unit.shard_group >= 0; };
  if (std::ranges::none_of(job.layout.units, is_sharded) && !parallelism.fsdp_cpu_offload) return policy;
  policy.reshard = parallelism.fsdp_reshard_after_forward;
  policy.n = static_cast<int>(parallelism.fsdp_reshard_every_n);
  const ParallelPlanKind plan = find_parallel_plan(job.config);
  if (plan.reshards != nullptr && policy.reshard == ReshardMode::by_default) {
    policy.reshard = ReshardMode::always;
    for (const UnitSpec& unit : job.part.units)
      if (!plan.reshards(job.config, unit.name)) policy.kept.push_back(unit.name);
  }
  policy.prefetch.forward = static_cast<int>(parallelism.fsdp_forward_prefetch);
  policy.prefetch.backward = static_cast<int>(parallelism.fsdp_backward_prefetch);
  return policy;
}

ReducePolicy reduce_policy(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  return {static_cast<int>(parallelism.fsdp_reduce_in_flight), parallelism.fsdp_reduce_each_micro_batch};
}

/// Throws UsageError for a matrix that is divided over ranks, if its update needs the whole.
void require_whole_matrices(const OptimizerChoice& optimizer, const UnitSpec& unit, const UnitLayout& layout,
                            int shards) {
  for (const ParameterSpec& parameter : unit.parameters) {
    const OptimizerKind& kind = optimizer.of(parameter);
    if (!unit.trainable || !kind.by_matrix) continue;
    if (parameter.has_parts_of_matrices()) {
      throw UsageError(
          format("optimizer.name = \"{}\" updates whole matrices, but {} divides {}; "
                 "set it to 1, or another optimizer",
                 kind.name,
                 unit.mesh == UnitMesh::experts ? "parallelism.expert_tensor_parallel_degree"
                                                : "parallelism.tensor_parallel_degree",
                 parameter.name));
    }
    if (shards > 1 && layout.partition.kind != PartitionKind::by_tensor) {
      throw UsageError(
          format("optimizer.name = \"{}\" updates whole matrices, but {} is divided over {} ranks; set "
                 "parallelism.fsdp_partition = \"by_tensor\"",
                 kind.name, parameter.name, shards));
    }
  }
}

/// The state and the workspace of the updates.
void set_optimizer_options(StepOptions& options, const Job& job) {
  const OptimizerChoice optimizer(job.config.optimizer, job.config.extensions);
  for (std::size_t u = 0; u < job.part.units.size(); ++u) {
    const UnitSpec& unit = job.part.units[u];
    const UnitLayout& held = job.layout.units.at(u);
    const int shards = job.layout.size_of(held.shard_group);
    require_whole_matrices(optimizer, unit, held, shards);
    options.optimizer_slots.push_back(optimizer.slots(unit));
    const int64_t shard_size = ShardLayout(unit, held.partition, shards).shard_size();
    options.update_workspace.push_back(unit.trainable ? optimizer.workspace(unit, shard_size) : 0);
  }
}

StepOptions common_options(const Job& job, ProgramKind kind) {
  const Config& config = job.config;
  StepOptions options;
  options.pipeline = job.pipeline.options();
  options.kind = kind;
  const int64_t threads = config.training.threads > 0 ? config.training.threads : hardware_threads();
  options.cost = {job.batch.tokens_per_micro_batch(),
                  job.batch.seq_len,
                  config.precision.compute,
                  threads,
                  job.layout.dims.cp,
                  job.layout.dims.tp};
  options.gather = gather_policy(job);
  if (kind == ProgramKind::train) {
    options.micro_batches = static_cast<int>(job.batch.micro_batches());
    options.pipeline.overlap_exchanges = config.parallelism.expert_parallel_overlap;
    options.update_state = config.model.router_bias_update_speed > 0.0;
    set_optimizer_options(options, job);
    options.recompute = plan_recomputation(config.activation_checkpoint);
  }
  if (job.pipeline.ranks() > 1) keep_names_of_part(options, job.model(), job.part);
  return options;
}

StepOptions generation_options(DType compute, int64_t cache_tokens) {
  StepOptions options;
  options.kind = ProgramKind::generate;
  options.cost = {1, cache_tokens, compute};
  options.kv_cache_tokens = cache_tokens;
  return options;
}

std::vector<Pass> passes_of_plugins(const Config& config) {
  std::vector<Pass> passes;
  for (const PassKind& kind : config.extensions.registry().all<PassKind>())
    passes.emplace_back([&kind, &config](StepProgram& program) { kind.run(program, config); });
  return passes;
}

/// Proves programs. A fault is a plug-in's if it has passes.
SymmetryProof prove_changed(const Job& job, const std::vector<StepProgram>& stages) {
  const auto& names = job.config.extensions.registry().names(PassKind::kKind);
  if (names.empty()) return prove_programs(stages, job.layout);
  try {
    return prove_programs(stages, job.layout);
  } catch (const ProgramError& fault) {
    throw UsageError(format("{}; passes of plug-ins have changed this program: {}", fault.what(),
                            join({names.begin(), names.end()}, ", ")));
  }
}

/// Writes the programs of all stages of this rank's pipeline, and proves those of all ranks.
template <typename Write>
ProvedStep prove(const Job& job, const Write& write) {
  const int pipeline = job.layout.pipeline_group;
  ProvedStep step;
  step.member = job.layout.index_in(pipeline);
  for (int member = 0; member < job.layout.size_of(pipeline); ++member)
    step.stages.push_back(member == step.member ? write(job) : write(job.at(member)));
  step.proof = prove_changed(job, step.stages);
  return step;
}

StepProgram own_program(ProvedStep step) {
  return std::move(element(step.stages, step.member));
}

bool has_turns(const Schedule& schedule) {
  return std::ranges::any_of(schedule.actions, [](const std::vector<Action>& actions) {
    for (std::size_t k = 0; k < actions.size(); ++k)
      if (turn_partner(actions, k, /*in_pipeline=*/true) != k) return true;
    return false;
  });
}

void check_overlap(const Job& job, const StepOptions& options) {
  const auto refuse = [](const std::string& reason) {
    throw UsageError(
        format("parallelism.expert_parallel_overlap = true, but {}, or turn the overlap off", reason));
  };
  if (job.layout.expert_group < 0)
    refuse("parallelism.expert_parallel_degree = 1, so that nothing is exchanged: raise the degree");
  if (options.micro_batches < 2) {
    refuse(format("a step has one micro-batch per rank, and two take turns: lower {}",
                  options.pipeline.schedule.ranks() > 1 ? "parallelism.pipeline_parallel_microbatch_size"
                                                        : "training.local_batch_size"));
  }
  if (options.pipeline.schedule.ranks() > 1 && !has_turns(options.pipeline.schedule)) {
    refuse(format(
        "the schedule {} has no forward after the backward of another micro-batch, to take turns with: use "
        "another parallelism.pipeline_parallel_schedule",
        job.config.parallelism.pipeline_parallel_schedule));
  }
}

}  // namespace

RecomputePolicy plan_recomputation(const ActivationCheckpointConfig& activation_checkpoint) {
  RecomputePolicy policy;
  policy.mode = activation_checkpoint.mode;
  policy.n = static_cast<int>(activation_checkpoint.every_n);
  for (const int64_t layer : activation_checkpoint.blocks)
    policy.blocks.push_back(format("layers.{}", layer));
  for (const RecomputeRegion region : activation_checkpoint.regions)
    policy.regions.emplace_back(choice_name(region));
  policy.calls = activation_checkpoint.calls;
  policy.budget = activation_checkpoint.memory_budget;
  return policy;
}

int ProvedStep::largest() const {
  return static_cast<int>(std::ranges::max_element(proof.class_peaks) - proof.class_peaks.begin());
}

StepProgram write_train_step(const Job& job) {
  StepOptions options = common_options(job, ProgramKind::train);
  options.ordered = job.config.training.reduction == ReductionMode::ordered;
  if (options.ordered) check_ordered_units(job);
  check_balanced_rows(job);
  if (options.pipeline.overlap_exchanges) check_overlap(job, options);
  options.reduce = reduce_policy(job.config);
  return build_step(job.part, job.layout, options, passes_of_plugins(job.config));
}

ProvedStep prove_train_step(const Job& job) {
  check_specification(job);
  return prove(job, write_train_step);
}

StepProgram plan_train_step(const Job& job) {
  return own_program(prove_train_step(job));
}

MemoryAccount plan_largest_memory(const Job& job) {
  const RankId rank = job.layout.id;
  const ProvedStep step = prove_train_step(
      plan_job(job.config, rank, job.whole, plan_divided_model(job.config, rank, /*all_rows=*/true)));
  return account(element(step.stages, step.largest()));
}

StepProgram plan_evaluation(const Job& job) {
  return own_program(prove(job, [](const Job& of_rank) {
    return build_step(of_rank.part, of_rank.layout, common_options(of_rank, ProgramKind::evaluate),
                      passes_of_plugins(of_rank.config));
  }));
}

StepProgram plan_generation(DType compute, const ModelSpec& model, int64_t cache_tokens) {
  StepProgram program = build_step(model, rank_layout(model.units, {.gather = compute}),
                                   generation_options(compute, cache_tokens));
  check_programs(std::span(&program, 1));
  return program;
}

StepProgram plan_samples(const Job& job, int64_t cache_tokens) {
  StepOptions options = generation_options(job.config.precision.compute, cache_tokens);
  options.pipeline = job.pipeline.options();
  return own_program(
      prove(job, [&](const Job& of_rank) { return build_step(of_rank.part, of_rank.layout, options); }));
}

}  // namespace stepforge
