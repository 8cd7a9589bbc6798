// An exponential moving average that is right from its first value on.
#pragma once

#include <cmath>
#include <limits>

namespace stepforge {

/// With bias correction: after k values the weights of the k values sum to 1, as in Adam (Kingma and Ba 2015,
/// section 3). Values that are not finite are passed over.
class Smoothed {
 public:
  /// All there is to save for the average to continue exactly; `weight` 0 means no value yet.
  struct State {
    double sum = 0;
    double weight = 0;
  };

  /// `decay` in [0, 1): the share of the average that a new value leaves in place; 0.98 looks back about 50
  /// values.
  explicit Smoothed(double decay = 0.98) : decay_(decay) {}

  void add(double value) {
    if (!std::isfinite(value)) return;
    state_.sum = decay_ * state_.sum + (1 - decay_) * value;
    state_.weight = decay_ * state_.weight + (1 - decay_);
  }
  /// NaN before the first value.
  double value() const {
    return state_.weight > 0 ? state_.sum / state_.weight : std::numeric_limits<double>::quiet_NaN();
  }

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  double decay_;
  State state_;
};

}  // namespace stepforge
