// SPDX-License-Identifier: Apache-2.0
// Random choices from a seed.
#pragma once

#include <cstdint>

#include "stepforge/base/random.h"

namespace stepforge::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}

  /// A number from 0 to `count` - 1.
  int below(int count) {
    return static_cast<int>(mix_bits(seed_ ^ mix_bits(++drawn_)) % static_cast<uint64_t>(count));
  }
  bool toss() { return below(2) == 1; }

 private:
  uint64_t seed_;
  uint64_t drawn_ = 0;
};

}  // namespace stepforge::testing
