// SPDX-License-Identifier: Apache-2.0
// What a loss compares the predictions with beside the label: a part of the distribution of another model, its teacher (Hinton et
// al. 2015, arXiv 1503.02531).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// Of n tokens the k most probable next tokens, with probabilities p that sum to 1. With q = softmax(logits / T) over the whole
/// vocabulary, T the temperature:
///
///   KL[n] = sum_j p[n, j] (log p[n, j] - log q[n, ids[n, j]]),   d KL[n] / d logits[n, v] = (q[n, v] - p[n, v]) / T
///   loss[n] = (1 - weight) cross_entropy[n] + weight T^2 KL[n]
///
/// T^2 is that of Hinton et al., section 2: the size of the gradient of KL falls like 1 / T^2.
struct SoftTargets {
  at::Tensor ids = {};         ///< int32 or int64 [n, k], different in each row; undefined: there are none
  at::Tensor log_probs = {};   ///< fp32 [n, k], finite
  double weight = 0.0;         ///< the share of KL in the loss
  double temperature = 1.0;    ///< T, at which log_probs are already
  at::Tensor divergence = {};  ///< fp32 [n]: written, KL; 0 where the label is ignored

  bool any() const { return ids.defined(); }
  /// Those of tokens [begin, end).
  SoftTargets slice(int64_t begin, int64_t end) const {
    if (!any()) return *this;
    return {ids.slice(0, begin, end), log_probs.slice(0, begin, end), weight, temperature,
            divergence.slice(0, begin, end)};
  }
};

}  // namespace stepforge
