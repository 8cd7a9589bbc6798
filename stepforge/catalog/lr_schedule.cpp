// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace stepforge {

namespace {

/// The decay from 1 to 0 at `progress` in [0, 1].
double decay(DecayType type, double progress) {
  switch (type) {
    case DecayType::linear:
      return 1.0 - progress;
    case DecayType::sqrt:
      return 1.0 - std::sqrt(progress);
    case DecayType::cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return 0.0;
}

}  // namespace

LearningRateSchedule::LearningRateSchedule(const LrSchedulerConfig& lr_scheduler, int64_t training_steps)
    : total_(lr_scheduler.total_steps > 0 ? lr_scheduler.total_steps : training_steps),
      warmup_(std::min(lr_scheduler.warmup_steps, total_)),
      decay_(total_ - warmup_),
      decay_type_(lr_scheduler.decay_type),
      minimum_(lr_scheduler.min_lr_factor) {
  if (lr_scheduler.decay_ratio >= 0.0) {
    decay_ = static_cast<int64_t>(std::nearbyint(static_cast<double>(total_) * lr_scheduler.decay_ratio));
    decay_was_cut_ = warmup_ + decay_ > total_;
    if (decay_was_cut_) decay_ = total_ - warmup_;
  }
  flat_ = total_ + 1 - warmup_ - decay_;
}

double LearningRateSchedule::factor(int64_t step) const {
  step = std::min(step, total_ - 1);
  if (step < warmup_) return static_cast<double>(step + 1) / static_cast<double>(warmup_);
  if (step < warmup_ + flat_ || decay_ == 0) return 1.0;
  const double progress = static_cast<double>(step + 1 - warmup_ - flat_) / static_cast<double>(decay_);
  return minimum_ + (1.0 - minimum_) * decay(decay_type_, progress);
}

}  // namespace stepforge
