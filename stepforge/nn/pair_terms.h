// SPDX-License-Identifier: Apache-2.0
// The loss of pairs of answers (modelspec/pair_loss.h) as a function of their log-probabilities, or of their scores.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/pair_loss.h"

namespace stepforge {

/// Of pairs of answers, the better one first; [pairs, 2] fp64. Of an answer that is judged alone, the other one is empty: 0
/// everywhere.
struct PairScores {
  at::Tensor log_probs;   ///< the sum over the tokens of the answer, or its score
  at::Tensor lengths;     ///< tokens of the answer
  at::Tensor references;  ///< log_probs of the reference; undefined if the loss has none
  double baseline = 0.0;  ///< z of judged answers
};

struct PairTerms {
  at::Tensor losses;     ///< [pairs] fp64, without the cross-entropy of sft_weight
  at::Tensor gradients;  ///< [pairs, 2] fp64: of losses by log_probs
  // As TRL logs them, [pairs, 2] fp64:
  at::Tensor
      rewards;  ///< beta times the log-probabilities below, less those of the reference if there is one
  at::Tensor log_probs;  ///< means over tokens, if the loss compares these without a reference, else sums
  at::Tensor present;    ///< [pairs, 2] fp64: 1 of an answer, 0 in place of an empty one
  double baseline = 0.0;
};

/// No autograd.
PairTerms pair_terms(const PairLoss& loss, const PairScores& scores);

inline constexpr int64_t kPairFigures = 8;
/// [kPairFigures] fp64: better answers; of the better and of the other answers: rewards, log-probabilities; pairs whose better answer
/// has the higher reward; the other answers; the baseline of each answer. Sums over pairs.
at::Tensor pair_figures(const PairTerms& terms);

}  // namespace stepforge
