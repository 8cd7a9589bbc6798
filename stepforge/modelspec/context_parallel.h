// SPDX-License-Identifier: Apache-2.0
// Context parallelism as a specification sees it: the tokens of each row are divided over `degree` ranks, and
// attention exchanges what it needs of the others.
#pragma once

#include <cstdint>

namespace stepforge {

enum class ContextMethod : uint8_t {
  allgather,  ///< keys and values of the whole rows are gathered (Llama 3, arXiv:2407.21783, section 3.3.2)
  ring,       ///< keys and values pass from rank to rank; partial results are merged (arXiv:2310.01889)
  ulysses     ///< each rank attends with some of the heads over whole rows (arXiv:2309.14509)
};

struct ContextParallel {
  int64_t degree = 1;
  ContextMethod method = ContextMethod::allgather;
};

}  // namespace stepforge
