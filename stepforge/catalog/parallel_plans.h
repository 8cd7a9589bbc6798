// SPDX-License-Identifier: Apache-2.0
// Parallel plans, of the program and of plug-ins: how tensor parallelism divides the layers, and which units FSDP keeps
// gathered.
#pragma once

#include <string_view>
#include <vector>

#include "stepforge/base/registry.h"
#include "stepforge/catalog/tensor_plan.h"
#include "stepforge/config/config.h"

namespace stepforge {

/// A value of parallelism.plan; registered by plug-ins.
struct ParallelPlanKind {
  static constexpr std::string_view kKind = "parallel plan";
  std::string_view name;
  /// Rules of tensor parallelism, as in parallelism.tensor_parallel_plan, whose rules come before these. What they do not
  /// name is divided as in all models. Null: none.
  std::vector<TensorPlanRule> (*tensor_rules)(const Config& config) = nullptr;
  /// Whether FSDP frees the gathered weights of a unit ("layers.3"; with experts also "layers.3.mlp" and "layers.3.experts";
  /// with frozen parameters also "layers.3.frozen"; as `plan` lists them) after each use, if
  /// parallelism.fsdp_reshard_after_forward is "default". Null: those of all units, but in pipelines of none.
  bool (*reshards)(const Config& config, std::string_view unit) = nullptr;
};

/// The plan that parallelism.plan names. Throws UsageError if neither the program nor a plug-in has it.
ParallelPlanKind find_parallel_plan(const Config& config);

/// The rules of the user, then those of the plan.
TensorPlan tensor_plan(const Config& config);

}  // namespace stepforge
