// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism as a specification sees it: every matrix of a layer is divided over `degree` ranks.
#pragma once

#include <cstdint>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

struct TensorParallel {
  int rank = 0;  ///< among those that hold the other parts
  int degree = 1;

  /// This rank's part of `count` heads, hidden units or tokens; the parts differ by at most one.
  ShardRange part_of(int64_t count) const { return {count * rank / degree, count * (rank + 1) / degree}; }
};

}  // namespace stepforge
