// SPDX-License-Identifier: Apache-2.0
// The learning rate as a factor per step: warm-up, flat part, decay, as in torchtitan
// (components/lr_scheduler.py). Plug-ins may register further shapes of the decay.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "stepforge/config/config.h"

namespace stepforge {

/// A step of the decay.
struct DecayStep {
  int64_t k = 0;            ///< from 1
  int64_t decay_steps = 0;  ///< k in the last step
  int64_t warmup_steps = 0;
  const LrSchedulerConfig& config;
  const Extensions& extensions;  ///< for the section of a plug-in

  double progress() const { return static_cast<double>(k) / static_cast<double>(decay_steps); }
};

/// A value of lr_scheduler.decay_type; registered by plug-ins. Without warm-up and with decay_ratio -1 it decides all
/// steps after the first.
struct DecayKind {
  static constexpr std::string_view kKind = "learning-rate decay";
  std::string_view name;
  double (*factor)(const DecayStep& step) = nullptr;  ///< f below: 1 is the peak, 0 the minimum
  /// The fields of [lr_scheduler] that only some decays read, and this one: "power". Others are refused if a user sets them.
  std::string_view reads = {};
  bool falls = true;  ///< false if it stays at 1, so that neither its length nor the minimum matters
};

std::span<const DecayKind> builtin_decays();

/// Throws UsageError if neither the program nor `registry` has it.
const DecayKind& find_decay(std::string_view name, const Registry& registry);

/// With T total steps, there are
/// - W = min(warmup_steps, T) warm-up steps, or round(T * warmup_ratio) if that is not negative,
/// - D = round(T * decay_ratio) decay steps, or T - W if decay_ratio is negative or W + D > T,
/// - S = T + 1 - W - D flat steps between them.
/// For the zero-based step s the factor is
/// - (s + 1) / W in the warm-up,
/// - 1 in the flat part,
/// - m + (1 - m) f in the decay, with m = min_lr_factor, k = s + 1 - W - S, p = k / D and f = 1 - p (linear),
///   1 - sqrt(p) (sqrt), (1 + cos(pi (c p mod 1))) / 2 for c = cycles (cosine), (1 - p)^power (polynomial),
///   sqrt(U / (U + k)) with U = W or, without warm-up, 10,000 (inverse_sqrt), or 1 (constant), as in transformers
///   (optimization.py).
/// After T steps it stays at the end of the decay, k = D, which is m for decays that fall to 0.
class LearningRateSchedule {
 public:
  /// `training_steps` is used if config.total_steps is 0. Throws UsageError if there is no such decay_type.
  LearningRateSchedule(const LrSchedulerConfig& config, int64_t training_steps,
                       const Extensions& extensions = {});

  /// The factor of the learning rate of every parameter group in step `step` (zero-based).
  double factor(int64_t step) const;
  /// Whether warm-up and decay together were longer than the run, so that the decay was shortened.
  bool decay_was_cut() const { return decay_was_cut_; }
  int64_t warmup_steps() const { return warmup_; }

 private:
  int64_t total_;
  int64_t warmup_;
  int64_t decay_;
  int64_t flat_;
  LrSchedulerConfig config_;
  Extensions extensions_;
  DecayKind kind_;
  bool decay_was_cut_ = false;
};

}  // namespace stepforge
