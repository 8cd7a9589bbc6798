// SPDX-License-Identifier: Apache-2.0
// Context parallelism as the data see it: the tokens of each row are divided over `degree` ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/data/batch.h"

namespace stepforge {

/// Tokens [begin, begin + size) of a row.
struct TokenRange {
  int64_t begin = 0;
  int64_t size = 0;

  bool operator==(const TokenRange&) const = default;
};

/// The tokens of a row that the rank holds, ascending; `row_length` must be a multiple of part.granularity().
/// With head_tail these are chunks `index` and 2 degree - 1 - index of 2 degree: a token sees those before it,
/// so each rank has the same work (Llama 3, arXiv:2407.21783, section 3.3.2).
std::vector<TokenRange> token_ranges(const ContextPart& part, int64_t row_length);

/// This rank's tokens, positions and labels of each row, and of those further ahead. Document boundaries stay those of the
/// whole rows. Throws Error if the length of a row is not a multiple of part.granularity().
Batch take_part(Batch whole, const ContextPart& part);

/// The tokens of `batch` that are tokens `whole` of the flattened whole rows, which lie in one row.
std::vector<TokenRange> held_tokens(const Batch& batch, const TokenRange& whole);

/// Of each token of the whole rows: its index in the parts of all ranks, rank after rank.
std::vector<int64_t> index_in_parts(const ContextPart& part, int64_t rows, int64_t row_length);

}  // namespace stepforge
