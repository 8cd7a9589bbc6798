#include "stepforge/plan/job_plan.h"

#include <algorithm>
#include <bit>
#include <map>
#include <span>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/threads.h"
#include "stepforge/catalog/families.h"
#include "stepforge/step/build.h"
#include "stepforge/step/checker.h"

namespace stepforge {

namespace {

RecomputePolicy recompute_policy(const ActivationCheckpointConfig& activation_checkpoint) {
  using Mode = RecomputePolicy::Mode;
  RecomputePolicy policy;
  const std::string& mode = activation_checkpoint.mode;
  policy.mode = mode == "full"      ? Mode::full
                : mode == "every_n" ? Mode::every_n
                : mode == "blocks"  ? Mode::blocks
                : mode == "regions" ? Mode::regions
                                    : Mode::none;
  policy.n = static_cast<int>(activation_checkpoint.every_n);
  for (const int64_t layer : activation_checkpoint.blocks)
    policy.blocks.push_back(format("layers.{}", layer));
  policy.regions = activation_checkpoint.regions;
  return policy;
}

/// On one rank, units that must be gathered stay whole, unless their state is offloaded.
GatherPolicy gather_policy(const Config& config, bool sharded) {
  using Reshard = GatherPolicy::Reshard;
  GatherPolicy policy;
  policy.dtype = compute_dtype(config.precision);
  const ParallelismConfig& parallelism = config.parallelism;
  // Also if nothing is sharded: their names are checked in every layout.
  for (const PrefetchListConfig& list : parallelism.fsdp_prefetch_lists)
    policy.prefetch.lists.push_back({list.unit, list.forward, list.backward});
  if (!sharded && !parallelism.fsdp_cpu_offload) return policy;
  const std::string& reshard = parallelism.fsdp_reshard_after_forward;
  policy.reshard = reshard == "never"     ? Reshard::never
                   : reshard == "every_n" ? Reshard::every_n
                                          : Reshard::always;
  policy.n = static_cast<int>(parallelism.fsdp_reshard_every_n);
  policy.prefetch.forward = static_cast<int>(parallelism.fsdp_forward_prefetch);
  policy.prefetch.backward = static_cast<int>(parallelism.fsdp_backward_prefetch);
  return policy;
}

ReducePolicy reduce_policy(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  return {static_cast<int>(parallelism.fsdp_reduce_in_flight), parallelism.fsdp_reduce_each_micro_batch,
          reduce_dtype(config.precision)};
}

Mesh mesh_of(const Config& config, int world_size) {
  ParallelDims dims;
  dims.dp_replicate = config.parallelism.data_parallel_replicate_degree;
  dims.dp_shard = config.parallelism.data_parallel_shard_degree;
  try {
    return {resolve_dims(dims, world_size), world_size};
  } catch (const UsageError& refusal) {
    throw UsageError(format(
        "parallelism.data_parallel_replicate_degree = {} and parallelism.data_parallel_shard_degree = {}: {}",
        dims.dp_replicate, dims.dp_shard, refusal.what()));
  }
}

DataParallel place_in(const Mesh& mesh, int rank) {
  return {rank, mesh.group(kShardGroup, rank), mesh.group(kReplicaGroup, rank), mesh.group(kLossGroup, rank)};
}

StepOptions generation_options(DType compute, int64_t cache_tokens) {
  StepOptions options;
  options.kind = ProgramKind::generate;
  options.cost = {1, cache_tokens, compute};
  options.gather.dtype = compute;
  options.kv_cache_tokens = cache_tokens;
  return options;
}

/// The groups of every rank, each list made once: the ranks of a group name the same first one.
class GroupTable {
 public:
  GroupTable(const StepProgram& program, const Mesh& mesh) : mesh_(mesh), lists_(program.groups.size()) {
    for (const ProgramGroup& group : program.groups) names_.push_back(group.name);
  }

  std::vector<GroupView> operator()(int rank) {
    std::vector<GroupView> groups;
    for (std::size_t g = 0; g < names_.size(); ++g) {
      std::vector<int>& ranks = lists_[g][mesh_.first(names_[g], rank)];
      if (ranks.empty()) ranks = mesh_.group(names_[g], rank);
      groups.push_back({names_[g], ranks});
    }
    return groups;
  }

 private:
  const Mesh& mesh_;
  std::vector<std::string> names_;
  std::vector<std::map<int, std::vector<int>>> lists_;  // of each group of the program, by first rank
};

/// All ranks run the operations of this one, over their own groups.
SymmetryProof prove(const StepProgram& program, const Mesh& mesh) {
  GroupTable table(program, mesh);
  return check_symmetric(program, mesh.world_size(), [&](int rank) { return table(rank); });
}

}  // namespace

namespace {

/// The two multiples of `step` around `value`.
std::string nearest_multiples(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return below == 0 ? format("{}", step) : format("{} or {}", below, below + step);
}

bool is_power_of_two(int64_t value) {
  return std::has_single_bit(static_cast<uint64_t>(value));
}

void check_ordered(const BatchPlan& batch, int data_ranks) {
  if (data_ranks == 1) return;
  if (!is_power_of_two(data_ranks)) {
    throw UsageError(format(
        "training.reduction = \"ordered\": {} ranks read different rows, but their sums are parts of one "
        "binary tree over all rows only if the number of ranks is a power of two; use {} or {} ranks, or "
        "reduction = \"fast\"",
        data_ranks, std::bit_floor(static_cast<unsigned>(data_ranks)),
        std::bit_ceil(static_cast<unsigned>(data_ranks))));
  }
  if (!is_power_of_two(batch.micro_batches)) {
    const auto rows = static_cast<uint64_t>(batch.micro_batches);
    throw UsageError(format(
        "training.reduction = \"ordered\": each of {} ranks has {} rows of a step, but their sums are parts "
        "of "
        "one binary tree over all rows only if that is a power of two; set training.global_batch_size to {} "
        "or {}, or reduction = \"fast\"",
        data_ranks, rows, std::bit_floor(rows) * static_cast<uint64_t>(data_ranks),
        std::bit_ceil(rows) * static_cast<uint64_t>(data_ranks)));
  }
}

}  // namespace

BatchPlan plan_batch(const TrainingConfig& training, int data_ranks) {
  const bool ordered = training.reduction == "ordered";
  BatchPlan batch;
  batch.seq_len = training.seq_len;
  batch.rows_per_step =
      training.global_batch_size > 0 ? training.global_batch_size : training.local_batch_size * data_ranks;
  batch.rows_per_micro_batch = ordered ? 1 : training.local_batch_size;
  const int64_t rows_at_once = batch.rows_per_micro_batch * data_ranks;
  if (batch.rows_per_step % rows_at_once != 0) {
    throw UsageError(
        format("training.global_batch_size = {} cannot be cut: {} ranks read micro-batches of {} rows "
               "(training.local_batch_size = {}), {} rows at once; set global_batch_size to {}",
               batch.rows_per_step, data_ranks, batch.rows_per_micro_batch, training.local_batch_size,
               rows_at_once, nearest_multiples(batch.rows_per_step, rows_at_once)));
  }
  batch.micro_batches = static_cast<int>(batch.rows_per_step / rows_at_once);
  if (ordered) check_ordered(batch, data_ranks);
  return batch;
}

DType compute_dtype(const PrecisionConfig& precision) {
  return precision.compute == "bf16" ? DType::bf16 : DType::f32;
}

DType reduce_dtype(const PrecisionConfig& precision) {
  return dtype_from_name(precision.reduce).value();
}

Partition partition_of(const ParallelismConfig& parallelism) {
  const std::string& partition = parallelism.fsdp_partition;
  return {partition == "by_tensor" ? Partition::Kind::by_tensor
          : partition == "by_dim"  ? Partition::Kind::by_dim
                                   : Partition::Kind::flat};
}

ModelSpec plan_model(const Config& config) {
  return model_spec(config.model, config.training.loss_chunk);
}

namespace {

StepOptions common_options(const Config& config, ProgramKind kind, DataParallel place) {
  const BatchPlan batch = plan_batch(config.training, static_cast<int>(place.loss_ranks.size()));
  StepOptions options;
  options.kind = kind;
  const int64_t threads = config.training.threads > 0 ? config.training.threads : hardware_threads();
  options.cost = {batch.tokens_per_micro_batch(), batch.seq_len, compute_dtype(config.precision), threads};
  options.gather = gather_policy(config, place.shard_ranks.size() > 1);
  options.offload.state = config.parallelism.fsdp_cpu_offload;
  options.micro_batches = kind == ProgramKind::train ? batch.micro_batches : 1;
  options.partition = partition_of(config.parallelism);
  options.data_parallel = std::move(place);
  return options;
}

}  // namespace

DataParallel data_parallel_of(const Config& config, RankId place) {
  return place_in(mesh_of(config, place.world_size), place.rank);
}

StepProgram write_train_step(const Config& config, const ModelSpec& model, RankId place) {
  StepOptions options =
      common_options(config, ProgramKind::train, place_in(mesh_of(config, place.world_size), place.rank));
  options.ordered = config.training.reduction == "ordered";
  options.recompute = recompute_policy(config.activation_checkpoint);
  options.reduce = reduce_policy(config);
  return build_step(model, options);
}

ProvedStep prove_train_step(const Config& config, const ModelSpec& model, RankId place) {
  ProvedStep step{write_train_step(config, model, place), {}};
  step.proof = prove(step.program, mesh_of(config, place.world_size));
  return step;
}

StepProgram plan_train_step(const Config& config, const ModelSpec& model, RankId place) {
  return prove_train_step(config, model, place).program;
}

StepProgram plan_evaluation(const Config& config, const ModelSpec& model, RankId place) {
  const Mesh mesh = mesh_of(config, place.world_size);
  StepProgram program =
      build_step(model, common_options(config, ProgramKind::evaluate, place_in(mesh, place.rank)));
  prove(program, mesh);
  return program;
}

StepProgram plan_generation(DType compute, const ModelSpec& model, int64_t cache_tokens) {
  StepProgram program = build_step(model, generation_options(compute, cache_tokens));
  check_programs(std::span(&program, 1));
  return program;
}

StepProgram plan_samples(const Config& config, const ModelSpec& model, int64_t cache_tokens, RankId place) {
  const Mesh mesh = mesh_of(config, place.world_size);
  StepOptions options = generation_options(compute_dtype(config.precision), cache_tokens);
  options.partition = partition_of(config.parallelism);
  options.offload.state = config.parallelism.fsdp_cpu_offload;
  options.data_parallel = place_in(mesh, place.rank);
  StepProgram program = build_step(model, options);
  prove(program, mesh);
  return program;
}

}  // namespace stepforge
