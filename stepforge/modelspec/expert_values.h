// SPDX-License-Identifier: Apache-2.0
// The blocks of a layer whose experts are spread over ranks. Between them rows of tokens pass to the ranks that have their
// experts, and results back: operations of the step program, beside which other blocks compute.
//
//   block             takes                           makes
//   layers.3          hidden                          hidden (the residual), tokens (normed), weights, experts
//   layers.3.shared   tokens                          shared, gate; only if there is an expert that all tokens take
//   layers.3.experts  tokens, weights, experts        combined
//     inside          rows, their weights, experts    results
//   layers.3.join     hidden, combined, shared, gate  hidden
//
// Full recomputation runs all but the last again, each from what it takes, which stays until then: of the experts that is
// the rows that came, so that nothing is exchanged again.
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/modelspec/expert_parallel.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// What passes between the blocks of a layer and to it, for `experts` experts of which each token takes `chosen`. If the
/// hidden state is a slice of the tokens, so is all else: each rank of tensor parallelism sends rows of its own tokens.
struct ExpertValues {
  BundleEntry hidden;
  BundleEntry tokens;
  BundleEntry weights;
  BundleEntry experts;

  ExpertValues(const BundleEntry& hidden, int64_t chosen);
  /// From the tokens to the rows that come, `rows` for each token if loads are even, and from their results back.
  DispatchSpec dispatch(int64_t experts, const ExpertParallel& parallel) const;
  BundleEntry combined() const;
  std::vector<BundleEntry> inputs(int64_t rows) const;
  BundleEntry results(int64_t rows) const;
};

/// One of the blocks of layer `layer`, without its lists.
BlockSpec layer_part(int layer, LayerPart part, std::vector<int> units, std::vector<BundleEntry> inputs,
                     std::vector<BundleEntry> outputs);

}  // namespace stepforge
