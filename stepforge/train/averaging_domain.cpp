// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/averaging_domain.h"

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/scalars.h"

namespace stepforge {

void AveragingDomain::weigh_tokens(const StepScalars& step) const {
  const auto weigh = [&](const at::Tensor& own, const at::Tensor& all, const at::Tensor& weight) {
    if (aggregation_ == LossAggregation::token_mean) return reciprocal_or_zero(all, weight);
    weight.copy_(own).mul_(step.data_ranks);
    reciprocal_or_zero(weight, weight);
  };
  weigh(step.own_weight, step.label_weight, step.token_weight);
  for (const AheadScalars& depth : step.ahead)
    weigh(depth.own_weight, depth.label_weight, depth.token_weight);
}

void AveragingDomain::average_own(const StepScalars& step) const {
  mean_in_order(step.loss_sums, step.own_weight, step.own_mean);
}

void AveragingDomain::average_all(const StepScalars& step) const {
  const int64_t micro_batches = step.loss_sums.numel();
  const at::Tensor sums = step.gathered_losses.narrow(1, 0, micro_batches).contiguous();
  const at::Tensor means = step.gathered_losses.select(1, micro_batches).contiguous();
  if (aggregation_ == LossAggregation::token_mean) {
    mean_in_order(sums.view({-1}), step.label_weight, step.loss);
  } else {
    mean_in_order(means, step.data_ranks, step.loss);
  }
  step.max_loss.copy_(means.amax());
}

}  // namespace stepforge
