// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_plan.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/threads.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/loss_kinds.h"
#include "stepforge/catalog/optimizer_kinds.h"
#include "stepforge/catalog/parallel_plans.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/plan/job_checks.h"
#include "stepforge/plan/pass_kind.h"
#include "stepforge/plan/stage_names.h"
#include "stepforge/step/alternate.h"
#include "stepforge/step/build.h"
#include "stepforge/step/checker.h"

namespace stepforge {

namespace {

bool is_power_of_two(int64_t value) {
  return std::has_single_bit(static_cast<uint64_t>(value));
}

void check_ordered(const BatchLayout& batch) {
  const int64_t data_ranks = batch.data_ranks;
  if (data_ranks == 1) return;
  if (!is_power_of_two(data_ranks)) {
    throw UsageError(format(
        "training.reduction = \"ordered\": {} ranks read different rows, but their sums are parts of one "
        "binary tree over all rows only if the number of ranks is a power of two; use {} or {} ranks, or "
        "reduction = \"fast\"",
        data_ranks, std::bit_floor(static_cast<uint64_t>(data_ranks)),
        std::bit_ceil(static_cast<uint64_t>(data_ranks))));
  }
  if (!is_power_of_two(batch.micro_batches())) {
    const auto rows = static_cast<uint64_t>(batch.micro_batches());
    throw UsageError(
        format("training.reduction = \"ordered\": each of {} ranks has {} rows of a step, "
               "but their sums are parts of one binary tree over all rows only if that is a power of two; "
               "set training.global_batch_size to {} or {}, or reduction = \"fast\"",
               data_ranks, rows, std::bit_floor(rows) * static_cast<uint64_t>(data_ranks),
               std::bit_ceil(rows) * static_cast<uint64_t>(data_ranks)));
  }
}

/// Throws UsageError if gradients of `model` are not sums over rows in one order.
void check_ordered_units(const ModelSpec& model, const ParallelDims& dims) {
  const auto has = [&](UnitMesh mesh) {
    return std::ranges::find(model.units, mesh, &UnitSpec::mesh) != model.units.end();
  };
  if (has(UnitMesh::experts)) {
    throw UsageError(format(
        "training.reduction = \"ordered\", but parallelism.expert_parallel_degree = {} and "
        "expert_tensor_parallel_degree = {}: the gradient of an expert is a product of the tokens of several "
        "ranks at once, not a sum over rows in one order; use reduction = \"fast\", or set both degrees to 1",
        dims.ep, dims.etp));
  }
  const auto sliced = std::ranges::find(model.units, UnitMesh::slices, &UnitSpec::mesh);
  if (sliced != model.units.end()) {
    throw UsageError(
        format("training.reduction = \"ordered\", but parallelism.tensor_parallel_degree = {} with sequence "
               "parallelism: the gradient of {} is a sum over parts of rows; set "
               "parallelism.enable_sequence_parallel = false, or reduction = \"fast\"",
               dims.tp, sliced->name));
  }
}

/// Throws UsageError if experts are balanced within rows, but a rank has parts of rows.
void check_balanced_rows(const Config& config, const BatchLayout& batch) {
  if (config.model.router_aux_loss_weight == 0.0 || batch.rows_per_micro_batch % batch.slices == 0) return;
  throw UsageError(format(
      "parallelism.tensor_parallel_degree = {} with sequence parallelism, but model.router_aux_loss_weight "
      "= {} and a micro-batch has {} rows: experts are balanced within whole rows, "
      "so a rank's slice must consist of whole rows; set training.local_batch_size (in a pipeline "
      "parallelism.pipeline_parallel_microbatch_size) to a multiple of the degree, or the weight to 0",
      batch.slices, config.model.router_aux_loss_weight, batch.rows_per_micro_batch));
}

RecomputePolicy::Mode recompute_mode(RecomputeMode mode) {
  switch (mode) {
    case RecomputeMode::none:
      return RecomputePolicy::Mode::none;
    case RecomputeMode::full:
      return RecomputePolicy::Mode::full;
    case RecomputeMode::every_n:
      return RecomputePolicy::Mode::every_n;
    case RecomputeMode::blocks:
      return RecomputePolicy::Mode::blocks;
    case RecomputeMode::regions:
      return RecomputePolicy::Mode::regions;
    case RecomputeMode::calls:
      return RecomputePolicy::Mode::calls;
    case RecomputeMode::budget:
      return RecomputePolicy::Mode::budget;
  }
  return {};
}

/// In a pipeline, resharding after each use would gather every unit once for each micro-batch.
GatherPolicy::Reshard reshard_mode(ReshardMode mode, bool in_pipeline) {
  switch (mode) {
    case ReshardMode::by_default:
      return in_pipeline ? GatherPolicy::Reshard::never : GatherPolicy::Reshard::always;
    case ReshardMode::always:
      return GatherPolicy::Reshard::always;
    case ReshardMode::never:
      return GatherPolicy::Reshard::never;
    case ReshardMode::every_n:
      return GatherPolicy::Reshard::every_n;
  }
  return {};
}

/// On one rank, gathered units stay whole, unless their state is offloaded.
GatherPolicy gather_policy(const Config& config, const ModelSpec& model, bool sharded) {
  GatherPolicy policy;
  const ParallelismConfig& parallelism = config.parallelism;
  // Set even if nothing is sharded, so that wrong unit names are refused in every layout.
  for (const PrefetchListConfig& list : parallelism.fsdp_prefetch_lists)
    policy.prefetch.lists.push_back({list.unit, list.forward, list.backward});
  if (!sharded && !parallelism.fsdp_cpu_offload) return policy;
  policy.reshard =
      reshard_mode(parallelism.fsdp_reshard_after_forward, parallelism.pipeline_parallel_degree > 1);
  policy.n = static_cast<int>(parallelism.fsdp_reshard_every_n);
  const ParallelPlanKind plan = find_parallel_plan(config);
  if (plan.reshards != nullptr && parallelism.fsdp_reshard_after_forward == ReshardMode::by_default) {
    policy.reshard = GatherPolicy::Reshard::always;
    for (const UnitSpec& unit : model.units)
      if (!plan.reshards(config, unit.name)) policy.kept.push_back(unit.name);
  }
  policy.prefetch.forward = static_cast<int>(parallelism.fsdp_forward_prefetch);
  policy.prefetch.backward = static_cast<int>(parallelism.fsdp_backward_prefetch);
  return policy;
}

ReducePolicy reduce_policy(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  return {static_cast<int>(parallelism.fsdp_reduce_in_flight), parallelism.fsdp_reduce_each_micro_batch};
}

/// The degrees that are not the default: "parallelism.tensor_parallel_degree = 2".
std::string degrees_text(const ParallelismConfig& parallelism) {
  const ParallelismConfig usual;
  std::vector<std::string> degrees;
  const auto add = [&](const char* name, int64_t ParallelismConfig::* degree) {
    if (parallelism.*degree != usual.*degree)
      degrees.push_back(format("parallelism.{} = {}", name, parallelism.*degree));
  };
  add("data_parallel_replicate_degree", &ParallelismConfig::data_parallel_replicate_degree);
  add("data_parallel_shard_degree", &ParallelismConfig::data_parallel_shard_degree);
  add("context_parallel_degree", &ParallelismConfig::context_parallel_degree);
  add("tensor_parallel_degree", &ParallelismConfig::tensor_parallel_degree);
  add("pipeline_parallel_degree", &ParallelismConfig::pipeline_parallel_degree);
  add("expert_parallel_degree", &ParallelismConfig::expert_parallel_degree);
  add("expert_tensor_parallel_degree", &ParallelismConfig::expert_tensor_parallel_degree);
  return degrees.empty() ? "the parallel degrees" : join(degrees, ", ");
}

/// Why one rank is too few for the degrees, and how to start more; `refusal` if that is not known.
std::string needs_ranks(const ParallelDims& dims, const std::string& refusal) {
  constexpr int64_t kMost = 1 << 24;
  double ranks = 1;
  for (const int64_t degree : {dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp})
    ranks *= static_cast<double>(std::max<int64_t>(1, degree));
  if (ranks <= 1) ranks = static_cast<double>(dims.ep * dims.etp);
  if (ranks <= 1 || ranks > kMost) return refusal;
  const auto wanted = static_cast<int64_t>(ranks);
  return format(
      "{} ranks are needed, and there is one; start them with `stepforge launch --nproc {} train ...` "
      "(`plan` and `prove`: --world-size {}), or set the degrees to 1",
      wanted, wanted, wanted);
}

ParallelDims dims_of(const Config& config, int world_size) {
  const ParallelismConfig& parallelism = config.parallelism;
  ParallelDims dims;
  dims.dp_replicate = parallelism.data_parallel_replicate_degree;
  dims.dp_shard = parallelism.data_parallel_shard_degree;
  dims.cp = parallelism.context_parallel_degree;
  dims.cp_heads = plan_context(config).heads();
  dims.tp = parallelism.tensor_parallel_degree;
  dims.pp = parallelism.pipeline_parallel_degree;
  dims.ep = parallelism.expert_parallel_degree;
  dims.etp = parallelism.expert_tensor_parallel_degree;
  try {
    return resolve_dims(dims, world_size);
  } catch (const UsageError& refusal) {
    const std::string degrees = degrees_text(parallelism);
    if (world_size > 1) throw UsageError(format("{}: {}", degrees, refusal.what()));
    throw UsageError(format("{}: {}", degrees, needs_ranks(dims, refusal.what())));
  }
}

Partition partition_of(const ParallelismConfig& parallelism) {
  switch (parallelism.fsdp_partition) {
    case FsdpPartition::flat:
      return {Partition::Kind::flat};
    case FsdpPartition::by_tensor:
      return {Partition::Kind::by_tensor};
    case FsdpPartition::by_dim:
      return {Partition::Kind::by_dim};
  }
  return {};
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
    if (shards > 1 && layout.partition.kind != Partition::Kind::by_tensor) {
      throw UsageError(
          format("optimizer.name = \"{}\" updates whole matrices, but {} is divided over {} ranks; set "
                 "parallelism.fsdp_partition = \"by_tensor\"",
                 kind.name, parameter.name, shards));
    }
  }
}

/// The state and the workspace of the updates. `model`: what the rank of `layout` holds.
void set_optimizer_options(StepOptions& options, const OptimizerChoice& optimizer, const ModelSpec& model,
                           const RankLayout& layout) {
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const UnitLayout& held = layout.units.at(u);
    const int shards = layout.size_of(held.shard_group);
    require_whole_matrices(optimizer, unit, held, shards);
    options.optimizer_slots.push_back(optimizer.slots(unit));
    const int64_t shard_size = ShardLayout(unit, held.partition, shards).shard_size();
    options.update_workspace.push_back(unit.trainable ? optimizer.workspace(unit, shard_size) : 0);
  }
}

/// `model`: what the rank of `layout` holds.
StepOptions common_options(const Config& config, ProgramKind kind, const ModelSpec& model,
                           const RankLayout& layout, const PipelinePlan& pipeline) {
  const BatchLayout batch = plan_batch(config, layout);
  StepOptions options;
  options.pipeline = pipeline.options();
  options.kind = kind;
  const int64_t threads = config.training.threads > 0 ? config.training.threads : hardware_threads();
  options.cost = {batch.tokens_per_micro_batch(),
                  batch.seq_len,
                  config.precision.compute,
                  threads,
                  layout.dims.cp,
                  layout.dims.tp};
  const auto is_sharded = [](const UnitLayout& unit) { return unit.shard_group >= 0; };
  options.gather = gather_policy(config, model, std::ranges::any_of(layout.units, is_sharded));
  if (kind == ProgramKind::train) {
    options.micro_batches = static_cast<int>(batch.micro_batches());
    options.pipeline.overlap_exchanges = config.parallelism.expert_parallel_overlap;
    options.update_state = config.model.router_bias_update_speed > 0.0;
    set_optimizer_options(options, OptimizerChoice(config.optimizer, config.extensions), model, layout);
    options.recompute = plan_recomputation(config.activation_checkpoint);
  }
  if (pipeline.ranks() > 1) keep_names_of_part(options, pipeline.model, model);
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
SymmetryProof prove_changed(const Config& config, const std::vector<StepProgram>& stages,
                            const RankLayout& layout) {
  const auto& names = config.extensions.registry().names(PassKind::kKind);
  if (names.empty()) return prove_programs(stages, layout);
  try {
    return prove_programs(stages, layout);
  } catch (const ProgramError& fault) {
    throw UsageError(format("{}; passes of plug-ins have changed this program: {}", fault.what(),
                            join({names.begin(), names.end()}, ", ")));
  }
}

/// Writes the programs of all stages of this rank's pipeline, and proves those of all ranks.
template <typename Write>
ProvedStep prove(const Config& config, const ModelSpec& model, const RankLayout& layout,
                 const PipelinePlan& pipeline, const Write& write) {
  ProvedStep step;
  step.member = layout.index_in(layout.pipeline_group);
  for (int member = 0; member < layout.size_of(layout.pipeline_group); ++member) {
    if (member == step.member) {
      step.stages.push_back(write(model, layout));
      continue;
    }
    const ModelSpec part = pipeline.part(member);
    const int rank = element(element(layout.groups, layout.pipeline_group).ranks, member);
    step.stages.push_back(write(part, plan_layout(config, part, {rank, layout.id.world_size}, pipeline)));
  }
  step.proof = prove_changed(config, step.stages, layout);
  return step;
}

StepProgram own_program(ProvedStep step) {
  return std::move(element(step.stages, step.member));
}

LabelWeights label_weights(LossReduction reduction) {
  switch (reduction) {
    case LossReduction::token:
      return LabelWeights::token;
    case LossReduction::sample:
      return LabelWeights::sample;
    case LossReduction::square:
      return LabelWeights::square;
  }
  return {};
}

}  // namespace

RecomputePolicy plan_recomputation(const ActivationCheckpointConfig& activation_checkpoint) {
  RecomputePolicy policy;
  policy.mode = recompute_mode(activation_checkpoint.mode);
  policy.n = static_cast<int>(activation_checkpoint.every_n);
  for (const int64_t layer : activation_checkpoint.blocks)
    policy.blocks.push_back(format("layers.{}", layer));
  for (const RecomputeRegion region : activation_checkpoint.regions)
    policy.regions.emplace_back(choice_name(region));
  policy.calls = activation_checkpoint.calls;
  policy.budget = activation_checkpoint.memory_budget;
  return policy;
}

namespace {

/// The rows of a micro-batch in a pipeline, for a data rank that has `rows` in a step: a part of the `most` rows that
/// it would compute at once without one.
int64_t pipeline_rows(const ParallelismConfig& parallelism, int64_t most, int64_t rows) {
  if (parallelism.pipeline_parallel_degree == 1) return most;
  if (parallelism.pipeline_parallel_microbatch_size > 0) return parallelism.pipeline_parallel_microbatch_size;
  if (!parallelism.pipeline_parallel_schedule_csv.empty()) return most;
  for (int64_t size = most; size > 1; --size)
    if (most % size == 0 && rows / size >= 2 * parallelism.pipeline_parallel_degree) return size;
  return 1;
}

}  // namespace

BatchLayout plan_batch(const Config& config, int data_ranks, int data_rank, const ContextPart& part) {
  const TrainingConfig& training = config.training;
  const bool ordered = training.reduction == ReductionMode::ordered;
  BatchLayout batch;
  batch.seq_len = training.seq_len;
  batch.rows_per_step =
      training.global_batch_size > 0 ? training.global_batch_size : training.local_batch_size * data_ranks;
  batch.rows_per_micro_batch = ordered ? 1 : training.local_batch_size;
  batch.data_ranks = data_ranks;
  batch.data_rank = data_rank;
  batch.part = part;
  batch.label_weights = label_weights(training.loss_reduction);
  batch.check();
  if (ordered) check_ordered(batch);
  batch.rows_per_micro_batch =
      pipeline_rows(config.parallelism, batch.rows_per_micro_batch, batch.rows_per_step / data_ranks);
  return batch;
}

BatchLayout plan_batch(const Config& config, const RankLayout& layout) {
  BatchLayout batch = plan_batch(
      config, layout.data_ranks, layout.data_rank,
      {layout.index_in(layout.context_group), layout.dims.cp,
       config.parallelism.context_parallel_load_balance == LoadBalance::head_tail, layout.dims.cp_heads});
  if (config.parallelism.enable_sequence_parallel) batch.slices = layout.dims.tp;
  batch.check();
  return batch;
}

namespace {

/// Adds what a loss of a plug-in allocates for each logit of a chunk: its gradient in fp32, and what the loss declares.
ModelSpec with_loss(ModelSpec model, const LossKind& loss) {
  if (loss.compute == nullptr) return model;
  for (BlockSpec& block : model.blocks)
    for (RegionSpec& region : block.regions)
      for (Call& call : region.list.calls)
        if (call.kind == CallKind::loss)
          std::any_cast<LossAttributes&>(call.attributes).numbers_per_logit = 1 + loss.workspace_per_logit;
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
  return with_loss(model_spec(config.model, config.training.loss_chunk), find_loss(config));
}

ContextParallel plan_context(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (parallelism.context_parallel_degree == 1) return {};
  switch (parallelism.context_parallel_method) {
    case ContextParallelMethod::allgather:
      return {parallelism.context_parallel_degree, ContextMethod::allgather};
    case ContextParallelMethod::ring:
      return {parallelism.context_parallel_degree, ContextMethod::ring};
    case ContextParallelMethod::ulysses:
      return {parallelism.context_parallel_degree, ContextMethod::ulysses};
    case ContextParallelMethod::hybrid:
      return {parallelism.context_parallel_degree, ContextMethod::hybrid, parallelism.ulysses_degree};
  }
  return {};
}

TensorParallel plan_tensor(const Config& config, RankId rank) {
  TensorParallel tensor = tensor_parallel(dims_of(config, rank.world_size), rank);
  if (tensor.degree == 1) return tensor;
  tensor.sequence = config.parallelism.enable_sequence_parallel;
  tensor.async = config.parallelism.enable_async_tensor_parallel;
  tensor.whole_logits = config.parallelism.disable_loss_parallel;
  return tensor;
}

namespace {

DispatchMethod method_of(ExpertDispatcher dispatcher) {
  switch (dispatcher) {
    case ExpertDispatcher::alltoall:
      return DispatchMethod::all_to_all;
    case ExpertDispatcher::allgather:
      return DispatchMethod::all_gather;
  }
  return {};
}

}  // namespace

ExpertParallel plan_experts(const Config& config, RankId rank) {
  const Mesh mesh(dims_of(config, rank.world_size), rank.world_size);
  return {.rank = mesh.coordinate(kExpertGroup, rank.rank),
          .degree = mesh.size(kExpertGroup),
          .parts = static_cast<int>(mesh.dims().etp),
          .method = method_of(config.parallelism.expert_parallel_dispatcher)};
}

ModelSpec plan_divided_model(const Config& config, RankId rank, bool all_rows) {
  ExpertParallel experts = plan_experts(config, rank);
  experts.all_rows = all_rows;
  return with_loss(model_spec(config.model, config.training.loss_chunk, plan_tensor(config, rank),
                              plan_context(config), tensor_plan(config), experts),
                   find_loss(config));
}

const StepProgram& ProvedStep::largest_program() const {
  return element(stages,
                 static_cast<int>(std::ranges::max_element(proof.class_peaks) - proof.class_peaks.begin()));
}

MemoryAccount plan_largest_memory(const Config& config, RankId rank) {
  const PipelinePlan pipeline =
      plan_pipeline(config, plan_model(config), plan_divided_model(config, rank, /*all_rows=*/true), rank);
  const ModelSpec part = plan_rank_model(pipeline, rank);
  return account(
      prove_train_step(config, part, plan_layout(config, part, rank, pipeline), pipeline).largest_program());
}

ModelSpec plan_rank_model(const PipelinePlan& pipeline, RankId rank) {
  return pipeline.part(rank.rank / std::max(1, rank.world_size / std::max(1, pipeline.ranks())));
}

int plan_data_ranks(const Config& config, int world_size) {
  return Mesh(dims_of(config, world_size), world_size).size("batch");
}

RankLayout plan_layout(const Config& config, const ModelSpec& model, RankId rank,
                       const PipelinePlan& pipeline) {
  ParallelPlan plan{.dims = dims_of(config, rank.world_size),
                    .partition = partition_of(config.parallelism),
                    .gather = config.precision.compute,
                    .reduce = config.precision.reduce,
                    .tied = pipeline.tied_unit(),
                    .offload = config.parallelism.fsdp_cpu_offload};
  for (const UnitSpec& unit : pipeline.model.units) plan.units.push_back(unit.name);
  return rank_layout(model.units, plan, rank);
}

namespace {

bool has_turns(const Schedule& schedule) {
  return std::ranges::any_of(schedule.actions, [](const std::vector<Action>& actions) {
    for (std::size_t k = 0; k < actions.size(); ++k)
      if (turn_partner(actions, k, /*in_pipeline=*/true) != k) return true;
    return false;
  });
}

void check_overlap(const Config& config, const RankLayout& layout, const StepOptions& options) {
  const auto refuse = [](const std::string& reason) {
    throw UsageError(
        format("parallelism.expert_parallel_overlap = true, but {}, or turn the overlap off", reason));
  };
  if (layout.expert_group < 0)
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
        config.parallelism.pipeline_parallel_schedule));
  }
}

}  // namespace

StepProgram write_train_step(const Config& config, const ModelSpec& model, const RankLayout& layout,
                             const PipelinePlan& pipeline) {
  StepOptions options = common_options(config, ProgramKind::train, model, layout, pipeline);
  options.ordered = config.training.reduction == ReductionMode::ordered;
  if (options.ordered) check_ordered_units(model, layout.dims);
  check_balanced_rows(config, plan_batch(config, layout));
  if (options.pipeline.overlap_exchanges) check_overlap(config, layout, options);
  options.reduce = reduce_policy(config);
  return build_step(model, layout, options, passes_of_plugins(config));
}

ProvedStep prove_train_step(const Config& config, const ModelSpec& model, const RankLayout& layout,
                            const PipelinePlan& pipeline) {
  check_specification(pipeline.ranks() > 1 ? pipeline.model : model, layout);
  return prove(config, model, layout, pipeline, [&](const ModelSpec& part, const RankLayout& of_part) {
    return write_train_step(config, part, of_part, pipeline);
  });
}

StepProgram plan_train_step(const Config& config, const ModelSpec& model, const RankLayout& layout,
                            const PipelinePlan& pipeline) {
  return own_program(prove_train_step(config, model, layout, pipeline));
}

StepProgram plan_evaluation(const Config& config, const ModelSpec& model, const RankLayout& layout,
                            const PipelinePlan& pipeline) {
  return own_program(
      prove(config, model, layout, pipeline, [&](const ModelSpec& part, const RankLayout& of_part) {
        return build_step(part, of_part,
                          common_options(config, ProgramKind::evaluate, part, of_part, pipeline),
                          passes_of_plugins(config));
      }));
}

StepProgram plan_generation(DType compute, const ModelSpec& model, int64_t cache_tokens) {
  StepProgram program = build_step(model, rank_layout(model.units, {.gather = compute}),
                                   generation_options(compute, cache_tokens));
  check_programs(std::span(&program, 1));
  return program;
}

StepProgram plan_samples(const Config& config, const ModelSpec& model, int64_t cache_tokens,
                         const RankLayout& layout, const PipelinePlan& pipeline) {
  StepOptions options = generation_options(config.precision.compute, cache_tokens);
  options.pipeline = pipeline.options();
  return own_program(prove(
      config, model, layout, pipeline,
      [&](const ModelSpec& part, const RankLayout& of_part) { return build_step(part, of_part, options); }));
}

}  // namespace stepforge
