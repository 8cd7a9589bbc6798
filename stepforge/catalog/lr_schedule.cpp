// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace stepforge {

namespace {

int64_t share_of(int64_t steps, double ratio) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(steps) * ratio));
}

}  // namespace

LearningRateSchedule::LearningRateSchedule(const LrSchedulerConfig& lr_scheduler, int64_t training_steps)
    : total_(lr_scheduler.total_steps > 0 ? lr_scheduler.total_steps : training_steps),
      warmup_(std::min(lr_scheduler.warmup_ratio >= 0.0 ? share_of(total_, lr_scheduler.warmup_ratio)
                                                        : lr_scheduler.warmup_steps,
                       total_)),
      decay_(total_ - warmup_),
      config_(lr_scheduler) {
  if (lr_scheduler.decay_ratio >= 0.0) {
    decay_ = share_of(total_, lr_scheduler.decay_ratio);
    decay_was_cut_ = warmup_ + decay_ > total_;
    if (decay_was_cut_) decay_ = total_ - warmup_;
  }
  flat_ = total_ + 1 - warmup_ - decay_;
}

double LearningRateSchedule::factor(int64_t step) const {
  step = std::min(step, total_ - 1);
  if (step < warmup_) return static_cast<double>(step + 1) / static_cast<double>(warmup_);
  if (step < warmup_ + flat_ || decay_ == 0) return 1.0;
  return config_.min_lr_factor + (1.0 - config_.min_lr_factor) * decay(step + 1 - warmup_ - flat_);
}

double LearningRateSchedule::decay(int64_t k) const {
  const LrSchedulerConfig& lr_scheduler = config_;
  const double progress = static_cast<double>(k) / static_cast<double>(decay_);
  switch (lr_scheduler.decay_type) {
    case DecayType::linear:
      return 1.0 - progress;
    case DecayType::sqrt:
      return 1.0 - std::sqrt(progress);
    case DecayType::cosine: {
      const double of_cycle =
          progress < 1.0 ? std::fmod(static_cast<double>(lr_scheduler.cycles) * progress, 1.0) : 1.0;
      return 0.5 * (1.0 + std::cos(std::numbers::pi * of_cycle));
    }
    case DecayType::polynomial:
      return std::pow(1.0 - progress, lr_scheduler.power);
    case DecayType::inverse_sqrt: {
      constexpr double kWithoutWarmup = 10000;
      const double unit = warmup_ > 0 ? static_cast<double>(warmup_) : kWithoutWarmup;
      return std::sqrt(unit / (unit + static_cast<double>(k)));
    }
    case DecayType::constant:
      return 1.0;
  }
  return 0.0;
}

}  // namespace stepforge
