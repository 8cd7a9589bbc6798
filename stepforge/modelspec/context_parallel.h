// SPDX-License-Identifier: Apache-2.0
// Context parallelism as a specification sees it: the tokens of each row are divided over `degree` ranks, and
// attention exchanges what it needs of the others.
#pragma once

#include <cstdint>

#include "stepforge/base/choices.h"

namespace stepforge {

/// Attention in two stages, of which a method may have one only: groups of heads() neighbours exchange tokens for
/// heads, so that each has some of the heads of all their tokens; then keys pass between the across() groups.
struct ContextParallel {
  int64_t degree = 1;
  ContextMethod method = ContextMethod::allgather;
  int64_t ulysses_degree = 1;  ///< of hybrid, a divisor of degree

  int64_t heads() const {
    return method == ContextMethod::ulysses ? degree : method == ContextMethod::hybrid ? ulysses_degree : 1;
  }
  int64_t across() const { return degree / heads(); }
  bool has_ring() const {
    return across() > 1 && (method == ContextMethod::ring || method == ContextMethod::hybrid);
  }
};

}  // namespace stepforge
