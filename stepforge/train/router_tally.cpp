// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/router_tally.h"

#include <ATen/ops/zeros.h>

namespace stepforge {

at::Tensor& RouterTally::sums_of(int64_t layer, int64_t experts, at::Device device) {
  at::Tensor& sums = sums_[layer];
  if (!sums.defined())
    sums = at::zeros({columns(experts)}, at::TensorOptions().dtype(at::kDouble).device(device));
  return sums;
}

void RouterTally::add(const RouterReport& report) {
  const int64_t experts = report.tokens_per_expert.numel();
  const at::Tensor& sums = sums_of(report.layer, experts, report.row_sums.device());
  sums.narrow(0, 0, experts).add_(report.tokens_per_expert);
  // For each row: load, probabilities, weight and z-loss.
  sums.narrow(0, experts, experts + 2).add_(report.row_sums.narrow(1, experts, experts + 2).sum(0));
  sums.select(0, 2 * experts + 2).add_(report.losses.select(0, 0));
}

}  // namespace stepforge
