// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/parallel_plans.h"

#include <array>

#include "stepforge/base/find_item.h"

namespace stepforge {

ParallelPlanKind find_parallel_plan(const Config& config) {
  static constexpr std::array<ParallelPlanKind, 1> kBuiltin = {{{.name = kBuiltinPlan}}};
  return find_item<ParallelPlanKind>(config.parallelism.plan, kBuiltin, config.extensions.registry(),
                                     "parallelism.plan");
}

TensorPlan tensor_plan(const Config& config) {
  const ParallelPlanKind kind = find_parallel_plan(config);
  const std::vector<TensorPlanRule>& rules = config.parallelism.tensor_parallel_plan;
  if (kind.tensor_rules == nullptr) return TensorPlan(rules);
  return TensorPlan(rules, kind.tensor_rules(config), format("parallelism.plan = \"{}\"", kind.name));
}

}  // namespace stepforge
