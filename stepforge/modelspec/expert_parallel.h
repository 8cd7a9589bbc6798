// SPDX-License-Identifier: Apache-2.0
// Expert parallelism as a specification sees it: the experts of a layer are spread over `degree` ranks.
#pragma once

#include <cstdint>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

struct ExpertParallel {
  int rank = 0;  ///< among those that hold the other experts
  int degree = 1;

  /// This rank's of `count` experts, of which every rank has equally many.
  ShardRange part_of(int64_t count) const { return {count * rank / degree, count * (rank + 1) / degree}; }
};

}  // namespace stepforge
