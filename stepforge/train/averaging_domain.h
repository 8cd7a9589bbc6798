// SPDX-License-Identifier: Apache-2.0
// The labels over which a step's loss is a mean. Scales gradients and computes the reported loss.
#pragma once

#include <cstdint>
#include <span>

#include "stepforge/config/config.h"

namespace stepforge {

/// For one step, on one rank. Gradients of all ranks are summed, so the weights of all tokens of a step add
/// up to 1 (with rank_average, to the share of ranks that have a valid label). A rank without a valid label
/// contributes zero.
class AveragingDomain {
 public:
  AveragingDomain(LossAggregation aggregation, int64_t own_labels, int ranks)
      : aggregation_(aggregation), own_labels_(own_labels), step_labels_(own_labels), ranks_(ranks) {}

  /// Sets the number of valid labels of all ranks. Call before the first loss is computed.
  void set_step_labels(int64_t labels) { step_labels_ = labels; }
  int64_t step_labels() const { return step_labels_; }

  /// The weight of each of this rank's tokens in the loss.
  double token_weight() const;
  /// The mean over this rank's labels; `loss_sums` are those of its micro-batches.
  double own_mean(std::span<const double> loss_sums) const;
  /// The loss of the step. `loss_sums`: those of all its micro-batches, in order; `rank_means`: own_mean() of
  /// each rank.
  double loss(std::span<const double> loss_sums, std::span<const double> rank_means) const;

 private:
  LossAggregation aggregation_;
  int64_t own_labels_;
  int64_t step_labels_;
  int ranks_;
};

}  // namespace stepforge
