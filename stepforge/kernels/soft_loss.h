// SPDX-License-Identifier: Apache-2.0
// The part of soft targets in the cross-entropy and its gradient. q of the loss is in what the kernels compute for the label, so
// only the k logits of each token are gathered before and changed after them. At another temperature than 1 it is not: then the
// kernels run twice, and once on logits / T.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/kernels/divided.h"

namespace stepforge {

/// A cross-entropy of logits [n, V] of a part of the vocabulary, as linear_cross_entropy() has them.
struct EntropyOfLogits {
  /// Writes the loss of the label, and with a scale the gradient into the logits.
  std::function<void(const at::Tensor& logits, const LossGradient& gradient, const at::Tensor& token_loss)>
      compute;
  VocabularyPart part;
  TensorExchange ranks;
};

/// The losses [n] of `gradient`, with its soft targets if it has any; with a scale the logits become their gradient.
void losses_with_soft_targets(const at::Tensor& logits, const at::Tensor& labels,
                              const LossGradient& gradient, const at::Tensor& token_loss,
                              const EntropyOfLogits& entropy);

/// The change at temperature 1. Does nothing unless the gradient has soft targets. Each change is made once: add_to() uses up what it has.
class SoftLoss {
 public:
  /// Reads the logits [n, V] (fp32, bf16 or fp64; capped if gradient.cap says so), before they become their gradient. `part`, `ranks`: as
  /// linear_cross_entropy() has them; the ranks exchange one number per token. `gradient` and `labels` must outlive it.
  SoftLoss(const LossGradient& gradient, const at::Tensor& logits, const at::Tensor& labels,
           const VocabularyPart& part, const TensorExchange& ranks);

  /// `logits_gradient`: of the label and of q, by a kernel that knew LossGradient::label_share(); `token_loss`: of the label.
  void add_to(const at::Tensor& logits_gradient, const at::Tensor& token_loss) const;

 private:
  void repeat_own(const at::Tensor& elsewhere);

  const LossGradient& gradient_;
  const at::Tensor& labels_;
  at::Tensor
      index_;  ///< int64 [n, k]: places in the logits; for those of other parts one of this part again, or column 0
  at::Tensor slopes_;      ///< [n, k]: p, times the slope of the cap; 0 in a row without a token of this part
  at::Tensor difference_;  ///< fp64 [n]: KL less the cross-entropy of the label
};

}  // namespace stepforge
