// SPDX-License-Identifier: Apache-2.0
// Expert parallelism as a specification sees it: the experts of a layer are spread over `degree` ranks. Each may be divided
// into parts, of equally many hidden units, which are on neighbouring ranks: the result of an expert is the sum of those of its
// parts, so a part is an expert of its own, which takes the same rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stepforge/base/choices.h"
#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

struct ExpertParallel {
  int rank = 0;  ///< among those that hold the other experts
  int degree = 1;
  /// Costs are those of a rank to which all rows come that can, instead of those of even loads.
  bool all_rows = false;
  int parts = 1;  ///< of each expert; they divide the degree
  DispatchMethod method = DispatchMethod::all_to_all;

  /// Ranks that have whole experts together.
  int owners() const { return degree / parts; }
  /// The rows that come to a rank, per token of its own, each of which takes `chosen` of `count` experts.
  int64_t rows_per_token(int64_t count, int64_t chosen) const {
    return all_rows ? degree * std::min(chosen, count / owners()) : chosen * parts;
  }
  /// This rank's of `count` experts, of which every rank has equally many.
  ShardRange part_of(int64_t count) const {
    const int owner = rank / parts;
    return {count * owner / owners(), count * (owner + 1) / owners()};
  }
  /// This rank's of the `hidden` units of each of them; the parts differ by at most one.
  ShardRange units_of(int64_t hidden) const {
    const int part = rank % parts;
    return {hidden * part / parts, hidden * (part + 1) / parts};
  }
};

}  // namespace stepforge
