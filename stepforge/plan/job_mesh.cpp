// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_mesh.h"

#include <algorithm>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/layout/rank_layout.h"

namespace stepforge {

namespace {

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

}  // namespace

ParallelDims plan_dims(const Config& config, int world_size) {
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

int plan_data_ranks(const Config& config, int world_size) {
  return Mesh(plan_dims(config, world_size), world_size).size("batch");
}

ContextParallel plan_context(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (parallelism.context_parallel_degree == 1) return {};
  return {parallelism.context_parallel_degree, parallelism.context_parallel_method,
          parallelism.ulysses_degree};
}

TensorParallel plan_tensor(const Config& config, RankId rank) {
  TensorParallel tensor = tensor_parallel(plan_dims(config, rank.world_size), rank);
  if (tensor.degree == 1) return tensor;
  tensor.sequence = config.parallelism.enable_sequence_parallel;
  tensor.async = config.parallelism.enable_async_tensor_parallel;
  tensor.whole_logits = config.parallelism.disable_loss_parallel;
  return tensor;
}

ExpertParallel plan_experts(const Config& config, RankId rank) {
  const Mesh mesh(plan_dims(config, rank.world_size), rank.world_size);
  return {.rank = mesh.coordinate(kExpertGroup, rank.rank),
          .degree = mesh.size(kExpertGroup),
          .parts = static_cast<int>(mesh.dims().etp),
          .method = config.parallelism.expert_parallel_dispatcher};
}

}  // namespace stepforge
