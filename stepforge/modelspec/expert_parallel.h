// SPDX-License-Identifier: Apache-2.0
// Expert parallelism as a specification sees it: the experts of a layer are spread over `degree` ranks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

struct ExpertParallel {
  int rank = 0;  ///< among those that hold the other experts
  int degree = 1;
  /// Costs are those of a rank to which all rows come that can, instead of those of even loads.
  bool all_rows = false;

  /// The rows that come to a rank, per token of its own, each of which takes `chosen` of `count` experts.
  int64_t rows_per_token(int64_t count, int64_t chosen) const {
    return all_rows ? degree * std::min(chosen, count / degree) : chosen;
  }
  /// This rank's of `count` experts, of which every rank has equally many.
  ShardRange part_of(int64_t count) const { return {count * rank / degree, count * (rank + 1) / degree}; }
};

}  // namespace stepforge
