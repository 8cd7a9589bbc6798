// SPDX-License-Identifier: Apache-2.0
// What the head of a model exchanges with a training step on pairs of answers.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "stepforge/data/batch.h"
#include "stepforge/modelspec/pair_loss.h"
#include "stepforge/nn/pair_terms.h"

namespace stepforge {

/// What a micro-batch of pairs adds to the numbers of a step; fp64 on the compute device.
struct PairReport {
  at::Tensor loss;     ///< a scalar: the sum over pairs, with the cross-entropy of sft_weight
  at::Tensor figures;  ///< pair_figures()
};

/// [pairs, 2] fp64: the log-probability of each answer, or its score, as far as this rank has its tokens, from LossResult::token_loss. There
/// must be pairs.
at::Tensor answer_log_probs(const PairLoss& loss, const Batch& batch, const at::Tensor& token_loss);

/// One micro-batch of a training step. The loss of a step is the sum over its pairs divided by their number.
class PreferenceStep {
 public:
  /// `loss` and `batch` must outlive it. `references`: [pairs, 2] fp64, undefined if the loss has none. `sft_scale`: a scalar, pairs of the
  /// step / labels of their better answers. `baseline`: PairScores::baseline. `on_report` is called once, by weigh().
  PreferenceStep(const PairLoss& loss, const Batch& batch, at::Device device, const at::Tensor& references,
                 at::Tensor sft_scale, std::function<void(const PairReport&)> on_report,
                 double baseline = 0.0);

  /// [tokens] fp32: the derivative of the loss by `token_loss` of each token (LossResult) [tokens] fp32. `sum`: sums a
  /// tensor over the ranks that have the other tokens of the rows; null if there are none.
  at::Tensor weigh(const at::Tensor& token_loss, const std::function<void(const at::Tensor&)>& sum) const;

 private:
  const PairLoss* loss_;
  const Batch* batch_;
  at::Tensor references_;
  at::Tensor lengths_;  ///< [pairs, 2] fp64
  at::Tensor sft_scale_;
  std::function<void(const PairReport&)> on_report_;
  double baseline_;
};

}  // namespace stepforge
