// SPDX-License-Identifier: Apache-2.0
// The loss of pairs of answers (modelspec/pair_loss.h) as a function of their log-probabilities, or of their scores.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/pair_loss.h"

namespace stepforge {

/// Of pairs of answers, the better one first; [pairs, 2] fp64.
struct PairScores {
  at::Tensor log_probs;   ///< the sum over the tokens of the answer, or its score
  at::Tensor lengths;     ///< tokens of the answer
  at::Tensor references;  ///< log_probs of the reference; undefined if the loss has none
};

struct PairTerms {
  at::Tensor losses;     ///< [pairs] fp64, without the cross-entropy of sft_weight
  at::Tensor gradients;  ///< [pairs, 2] fp64: of losses by log_probs
  // As TRL logs them, [pairs, 2] fp64:
  at::Tensor
      rewards;  ///< beta times the log-probabilities below, less those of the reference if there is one
  at::Tensor log_probs;  ///< means over tokens, if the loss compares these without a reference, else sums
};

/// No autograd.
PairTerms pair_terms(const PairLoss& loss, const PairScores& scores);

inline constexpr int64_t kPairFigures = 6;
/// [kPairFigures] fp64: pairs; of the better and of the other answers: rewards, log-probabilities; pairs whose better answer has
/// the higher reward. Sums over pairs.
at::Tensor pair_figures(const PairTerms& terms);

}  // namespace stepforge
