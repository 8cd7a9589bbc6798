// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/clip_grad_norm.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/fsdp/unit_tree.h"
#include "stepforge/kernels/scalars.h"
#include "stepforge/storage/gradient_norm.h"

namespace stepforge {

namespace {

NormType norm_type_of(double type) {
  if (type == 1.0) return NormType::l1;
  if (type == 2.0) return NormType::l2;
  if (type == 3.0) return NormType::l3;
  if (type == std::numeric_limits<double>::infinity()) return NormType::inf;
  throw UsageError(format("norm_type = {}: must be 1, 2, 3 or infinity", type));
}

}  // namespace

double clip_grad_norm(const ShardedModule& module, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  const NormType type = norm_type_of(norm_type);
  if (!(max_norm >= 0.0)) throw UsageError(format("max_norm = {}: must be 0 or more", max_norm));
  module.wait_for_reductions();
  const at::NoGradGuard no_grad;
  const ShardMesh& mesh = module.unit()->mesh();
  // Terms of replicated parameters are the same on all ranks and count once. Parameters that all ranks of
  // tensor parallelism hold are counted by the first one.
  const std::vector<FsdpParamRef> parameters = sharded_parameters(*module.module());
  const auto scalar_options = at::TensorOptions(at::kDouble).device(device_of(parameters));
  const at::Tensor sharded = at::zeros({}, scalar_options);
  const at::Tensor replicated = at::zeros({}, scalar_options);
  const at::Tensor own = at::zeros({}, scalar_options);
  std::vector<at::Tensor> gradients;
  for (const FsdpParamRef& parameter : parameters) {
    if (!parameter.local().grad().defined()) continue;
    gradients.push_back(parameter.local().grad());
    const UnitStore& store = parameter.group->store();
    if (!store.layout().counts(parameter.index)) continue;
    norm_terms(gradients.back(), type, own);
    join_norm_terms(type, own, store.sharded() ? sharded : replicated);
  }
  join_over_shards(mesh.shard_ranks(), type, sharded);
  join_norm_terms(type, replicated, sharded);
  join_over_shards(mesh.tensor_ranks(), type, sharded);
  const at::Tensor norm = at::zeros({}, scalar_options);
  norm_of_terms(type, sharded, norm);
  const auto found = norm.item<double>();
  if (error_if_nonfinite && !std::isfinite(found)) {
    throw Error(format("the gradient norm of type {} is {}: gradients are left unchanged", norm_type, found));
  }
  const at::Tensor coefficient = at::zeros({}, scalar_options);
  if (max_norm > 0.0) clip_coefficient(norm, max_norm, coefficient);
  if (coefficient.item<double>() != 1.0) {
    for (at::Tensor& gradient : gradients) gradient.mul_(coefficient);
  }
  return found;
}

}  // namespace stepforge
