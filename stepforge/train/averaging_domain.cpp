// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/averaging_domain.h"

#include <numeric>

namespace stepforge {

namespace {

double mean(std::span<const double> values, int64_t count) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return count > 0 ? sum / static_cast<double>(count) : 0.0;
}

}  // namespace

double AveragingDomain::token_weight() const {
  const int64_t labels = aggregation_ == LossAggregation::token_mean ? step_labels_ : own_labels_ * ranks_;
  return labels > 0 ? 1.0 / static_cast<double>(labels) : 0.0;
}

double AveragingDomain::own_mean(std::span<const double> loss_sums) const {
  return mean(loss_sums, own_labels_);
}

double AveragingDomain::loss(std::span<const double> loss_sums, std::span<const double> rank_means) const {
  return aggregation_ == LossAggregation::token_mean ? mean(loss_sums, step_labels_)
                                                     : mean(rank_means, ranks_);
}

}  // namespace stepforge
