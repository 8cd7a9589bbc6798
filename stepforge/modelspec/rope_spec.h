// SPDX-License-Identifier: Apache-2.0
// The rotary embedding of a model (kernels/rope.h).
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/base/choices.h"

namespace stepforge {

struct RopeScaling {
  RopeScalingType type = RopeScalingType::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position = 8192;
  double attention_factor = 0.0;      ///< of yarn and longrope; 0: from the factor
  std::vector<double> divisors = {};  ///< of longrope [size / 2]
  // Of yarn:
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;  ///< if both are above 0, the attention factor is the ratio of theirs
  double mscale_all_dim = 0.0;
  bool truncate = true;
};

struct RopeSpec {
  int64_t size = 0;  ///< elements of a head that are rotated
  double theta = 1e4;
  RopeScaling scaling = {};
  std::vector<double> long_divisors =
      {};  ///< of longrope, for rows longer than scaling.original_max_position

  /// For rows of this length.
  RopeScaling scaling_of(int64_t row_length) const {
    RopeScaling made = scaling;
    if (row_length > scaling.original_max_position && !long_divisors.empty()) made.divisors = long_divisors;
    return made;
  }
};

}  // namespace stepforge
