// SPDX-License-Identifier: Apache-2.0
// An exponential moving average without bias towards its initial value.
#pragma once

#include <cmath>
#include <limits>

namespace stepforge {

/// With bias correction, so that the weights of all values so far sum to 1, as in Adam (Kingma and Ba 2015,
/// section 3). The two members are the whole state: saving them is enough to continue exactly.
struct Smoothed {
  double sum = 0;
  double weight = 0;  ///< 0: no value yet

  /// Values that are not finite are ignored. `decay` in [0, 1) is the weight of the previous average:
  /// 0.98 averages over about 50 values.
  void add(double value, double decay) {
    if (!std::isfinite(value)) return;
    sum = decay * sum + (1 - decay) * value;
    weight = decay * weight + (1 - decay);
  }
  /// NaN before the first value.
  double value() const { return weight > 0 ? sum / weight : std::numeric_limits<double>::quiet_NaN(); }
};

}  // namespace stepforge
