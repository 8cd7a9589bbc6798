// SPDX-License-Identifier: Apache-2.0
// How rows of tokens come to the ranks that have their experts, and results back. A device that has a way of its own adds a
// method here and to ExpertDispatcher of the configuration, and its TokenRoutes to storage/token_dispatch.h; compilers
// then name each switch that has no case for it.
#pragma once

#include <cstdint>

namespace stepforge {

enum class DispatchMethod : uint8_t {
  /// Each rank sends a row for each choice of its tokens to the rank of the expert (GShard, arXiv:2006.16668).
  all_to_all,
  /// All tokens and choices go to all ranks, which take the rows of their own experts. Each sums the results of every token,
  /// and a reduce-scatter adds up these sums.
  all_gather
};

}  // namespace stepforge
