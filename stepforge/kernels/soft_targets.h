// SPDX-License-Identifier: Apache-2.0
// What a loss compares the predictions with beside the label: a part of the distribution of another model, its teacher (Hinton et
// al. 2015, arXiv 1503.02531).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// Of n tokens the k most probable next tokens, with probabilities p that sum to 1. With q = softmax(logits) over the whole vocabulary:
///
///   KL[n] = sum_j p[n, j] (log p[n, j] - log q[n, ids[n, j]]),   d KL[n] / d logits[n, v] = q[n, v] - p[n, v]
///   loss[n] = (1 - weight) cross_entropy[n] + weight KL[n]
struct SoftTargets {
  at::Tensor ids = {};         ///< int32 or int64 [n, k], different in each row; undefined: there are none
  at::Tensor log_probs = {};   ///< fp32 [n, k], finite
  double weight = 0.0;         ///< the share of KL in the loss
  at::Tensor divergence = {};  ///< fp32 [n]: written, KL; 0 where the label is ignored

  bool any() const { return ids.defined(); }
  /// Those of tokens [begin, end).
  SoftTargets slice(int64_t begin, int64_t end) const {
    if (!any()) return *this;
    return {ids.slice(0, begin, end), log_probs.slice(0, begin, end), weight,
            divergence.slice(0, begin, end)};
  }
};

}  // namespace stepforge
