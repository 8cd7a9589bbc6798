// SPDX-License-Identifier: Apache-2.0
// A parallel plan: attention is whole on every rank if its heads cannot be divided, and FSDP keeps the embedding gathered.
#include <stepforge/base/plugin.h>
#include <stepforge/catalog/parallel_plans.h>

using namespace stepforge;

static std::vector<TensorPlanRule> whole_attention(const Config& config) {
  if (config.model.n_kv_heads % config.parallelism.tensor_parallel_degree == 0) return {};
  return {{.pattern = "attention", .style = TensorStyle::replicate}};
}

static bool all_but_embedding(const Config&, std::string_view unit) {
  return unit != "embedding";
}

STEPFORGE_PLUGIN(registry) {
  registry.add(ParallelPlanKind{
      .name = "whole_attention", .tensor_rules = whole_attention, .reshards = all_but_embedding});
}
