// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism as a specification sees it: every matrix of a layer is divided over `degree` ranks.
#pragma once

#include <cstdint>

#include "stepforge/modelspec/flat_layout.h"

namespace stepforge {

struct TensorParallel {
  int rank = 0;  ///< among those that hold the other parts
  int degree = 1;
  /// Between the divided matrices a rank has an equal slice of the tokens (sequence parallelism,
  /// arXiv:2205.05198) instead of all.
  bool sequence = false;
  /// The loss is computed from the logits of the whole vocabulary, on every rank, instead of from parts.
  bool whole_logits = false;
  /// Of one layer: whether it is divided, as all are unless a plan says otherwise. Every rank has all of a layer
  /// that is not.
  bool divided = true;
  /// With slices: they pass between the ranks one by one, while matrix products of those at hand are computed.
  bool async = false;

  /// This rank's part of `count` heads, hidden units, tokens of the vocabulary or of a batch; the parts differ by at most one.
  ShardRange part_of(int64_t count) const {
    if (!divided) return {0, count};
    return {count * rank / degree, count * (rank + 1) / degree};
  }
  /// The index of the part `distance` places after this rank's, around the end; negative: before.
  int64_t part_after(int64_t distance) const { return (rank + degree + distance) % degree; }
};

}  // namespace stepforge
