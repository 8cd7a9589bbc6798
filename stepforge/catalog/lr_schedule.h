// SPDX-License-Identifier: Apache-2.0
// The learning rate as a factor per step: warm-up, flat part, decay. torchtitan's table
// (components/lr_scheduler.py).
#pragma once

#include <cstdint>

#include "stepforge/config/config.h"

namespace stepforge {

/// With T = total steps: W = min(warm-up, T); D = round(T * decay_ratio), or T - W where decay_ratio is
/// negative; if W + D > T then D = T - W; S = T + 1 - W - D flat steps. For the zero-based step s the factor
/// is (s + 1) / W in the warm-up, 1 in the flat part, then m + (1 - m) f with m = min_lr_factor, p = (s + 1 -
/// W - S) / D and f = 1 - p (linear), 1 - sqrt(p) (sqrt) or (1 + cos(pi p)) / 2 (cosine). Past T it stays at
/// the last value.
class LearningRateSchedule {
 public:
  /// `training_steps` is used where config.total_steps is 0.
  LearningRateSchedule(const LrSchedulerConfig& config, int64_t training_steps);

  /// The factor by which step `step` (zero-based) multiplies every group's rate.
  double factor(int64_t step) const;
  /// Whether warm-up and decay together were longer than the run, so that the decay was cut.
  bool decay_was_cut() const { return decay_was_cut_; }

 private:
  int64_t total_;
  int64_t warmup_;
  int64_t decay_;
  int64_t flat_;
  DecayType decay_type_;
  double minimum_;
  bool decay_was_cut_ = false;
};

}  // namespace stepforge
