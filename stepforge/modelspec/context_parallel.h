// SPDX-License-Identifier: Apache-2.0
// Context parallelism as a specification sees it: the tokens of each row are divided over `degree` ranks, and
// attention exchanges what it needs of the others.
#pragma once

#include <cstdint>

namespace stepforge {

enum class ContextMethod : uint8_t {
  allgather,  ///< keys and values of the whole rows are gathered (Llama 3, arXiv:2407.21783, section 3.3.2)
  ring,       ///< keys and values pass from rank to rank; partial results are merged (arXiv:2310.01889)
  ulysses,    ///< each rank attends with some of the heads over whole rows (arXiv:2309.14509)
  hybrid      ///< ulysses within groups of `ulysses_degree` neighbours, ring across them (arXiv:2405.07719)
};

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
