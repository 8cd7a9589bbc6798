// SPDX-License-Identifier: Apache-2.0
// The labels over which a step's loss is a mean. Scales gradients and computes the reported loss.
#pragma once

#include "stepforge/config/config.h"
#include "stepforge/train/step_scalars.h"

namespace stepforge {

/// On one rank. Gradients of all ranks are summed, so the weights of all tokens of a step add up to 1 (with
/// rank_average, to the share of ranks that have a valid label). A rank without a valid label contributes
/// zero. Each function reads the step's scalars and writes others.
class AveragingDomain {
 public:
  explicit AveragingDomain(LossAggregation aggregation) : aggregation_(aggregation) {}

  /// token_weight, when the labels of the step are known.
  void weigh_tokens(const StepScalars& step) const;
  /// own_mean, when the loss sums of all micro-batches are known.
  void average_own(const StepScalars& step) const;
  /// loss and max_loss, when the losses of all ranks are known.
  void average_all(const StepScalars& step) const;

 private:
  LossAggregation aggregation_;
};

}  // namespace stepforge
