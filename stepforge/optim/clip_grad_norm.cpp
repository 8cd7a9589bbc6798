// clip_grad_norm of sharded_adamw.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/optim/sharded_adamw.h"
#include "stepforge/storage/gradient_norm.h"

namespace stepforge {

namespace {

NormType norm_type_of(double type) {
  if (type == 1.0) return NormType::l1;
  if (type == 2.0) return NormType::l2;
  if (type == 3.0) return NormType::l3;
  if (type == std::numeric_limits<double>::infinity()) return NormType::inf;
  throw UsageError(format("norm type {}: choose 1, 2, 3 or infinity", type));
}

double norm_terms(const at::Tensor& gradient, NormType type) {
  const at::Tensor flat = gradient.reshape({-1}).contiguous();
  std::vector<double> chunks(static_cast<size_t>(reduce_chunks(flat.numel())));
  norm_terms_by_chunk(flat, type, chunks);
  double joined = 0.0;
  for (const double chunk : chunks) joined = join_norm_terms(type, joined, chunk);
  return joined;
}

}  // namespace

double clip_grad_norm(const ShardedModule& module, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  const NormType type = norm_type_of(norm_type);
  if (!(max_norm >= 0.0)) throw UsageError(format("max_norm must be 0 or more, not {}", max_norm));
  module.wait_for_reductions();
  const at::NoGradGuard no_grad;
  // Parts that are cut over the same ranks are joined together; replicated ones are the same on all.
  std::vector<std::pair<const DataGroups*, double>> terms;
  std::vector<at::Tensor> gradients;
  const auto terms_of = [&](const DataGroups* groups) -> double& {
    const auto found =
        std::find_if(terms.begin(), terms.end(), [&](auto& one) { return one.first == groups; });
    return found != terms.end() ? found->second : terms.emplace_back(groups, 0.0).second;
  };
  for (const FsdpParamRef& parameter : fsdp_param_group(*module.module())) {
    double& joined = terms_of(&parameter.part->store().groups());
    if (!parameter.local().grad().defined()) continue;
    gradients.push_back(parameter.local().grad());
    joined = join_norm_terms(type, joined, norm_terms(gradients.back(), type));
  }
  double total = 0.0;
  for (const auto& [groups, own] : terms) {
    total = join_norm_terms(type, total, join_over_shards(*groups, type, own));
  }
  const double norm = norm_of_terms(type, total);
  if (error_if_nonfinite && !std::isfinite(norm)) {
    throw Error(format("the gradients' norm of type {} is {}; they are left as they are", norm_type, norm));
  }
  const double coefficient = max_norm / (norm + 1e-6);
  if (coefficient < 1.0) {
    for (at::Tensor& gradient : gradients) gradient.mul_(coefficient);
  }
  return norm;
}

}  // namespace stepforge
