// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "stepforge/base/find_item.h"

namespace stepforge {

namespace {

int64_t share_of(int64_t steps, double ratio) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(steps) * ratio));
}

double linear(const DecayStep& step) {
  return 1.0 - step.progress();
}

double square_root(const DecayStep& step) {
  return 1.0 - std::sqrt(step.progress());
}

double cosine(const DecayStep& step) {
  const LrSchedulerConfig& lr_scheduler = step.config;
  const double progress = step.progress();
  const double of_cycle =
      progress < 1.0 ? std::fmod(static_cast<double>(lr_scheduler.cycles) * progress, 1.0) : 1.0;
  return 0.5 * (1.0 + std::cos(std::numbers::pi * of_cycle));
}

double polynomial(const DecayStep& step) {
  const LrSchedulerConfig& lr_scheduler = step.config;
  return std::pow(1.0 - step.progress(), lr_scheduler.power);
}

double inverse_sqrt(const DecayStep& step) {
  constexpr double kWithoutWarmup = 10000;
  const double unit = step.warmup_steps > 0 ? static_cast<double>(step.warmup_steps) : kWithoutWarmup;
  return std::sqrt(unit / (unit + static_cast<double>(step.k)));
}

double constant(const DecayStep& /*step*/) {
  return 1.0;
}

constexpr std::array<DecayKind, 6> kDecays = {{{"linear", linear},
                                               {"sqrt", square_root},
                                               {"cosine", cosine, "cycles"},
                                               {"polynomial", polynomial, "power"},
                                               {"inverse_sqrt", inverse_sqrt},
                                               {.name = "constant", .factor = constant, .falls = false}}};

}  // namespace

std::span<const DecayKind> builtin_decays() {
  return kDecays;
}

const DecayKind& find_decay(std::string_view name, const Registry& registry) {
  return find_item<DecayKind>(name, kDecays, registry, "lr_scheduler.decay_type");
}

LearningRateSchedule::LearningRateSchedule(const LrSchedulerConfig& lr_scheduler, int64_t training_steps,
                                           const Extensions& extensions)
    : total_(lr_scheduler.total_steps > 0 ? lr_scheduler.total_steps : training_steps),
      warmup_(std::min(lr_scheduler.warmup_ratio >= 0.0 ? share_of(total_, lr_scheduler.warmup_ratio)
                                                        : lr_scheduler.warmup_steps,
                       total_)),
      decay_(total_ - warmup_),
      config_(lr_scheduler),
      extensions_(extensions),
      kind_(find_decay(lr_scheduler.decay_type, extensions.registry())) {
  if (lr_scheduler.decay_ratio >= 0.0) {
    decay_ = share_of(total_, lr_scheduler.decay_ratio);
    decay_was_cut_ = warmup_ + decay_ > total_;
    if (decay_was_cut_) decay_ = total_ - warmup_;
  }
  flat_ = total_ + 1 - warmup_ - decay_;
}

double LearningRateSchedule::factor(int64_t step) const {
  step = std::min(step, total_);  // step `total_` and those after it have the rate at the end
  if (step < warmup_) return static_cast<double>(step + 1) / static_cast<double>(warmup_);
  if (step < warmup_ + flat_ || decay_ == 0) return 1.0;
  const DecayStep decay = {.k = step + 1 - warmup_ - flat_,
                           .decay_steps = decay_,
                           .warmup_steps = warmup_,
                           .config = config_,
                           .extensions = extensions_};
  return config_.min_lr_factor + (1.0 - config_.min_lr_factor) * kind_.factor(decay);
}

}  // namespace stepforge
