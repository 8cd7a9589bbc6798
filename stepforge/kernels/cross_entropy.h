// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of logits, and the language-model head fused with it.
//
//   loss[n] = log sum_v exp(logits[n, v]) - logits[n, label[n]], and 0 where the label is -100 (ignored)
//   d loss[n] / d logits[n, v] = softmax(logits[n])[v] - (v == label[n])
//
// Gradients may include that of a z-loss (Chowdhery et al., "PaLM", 2022, section 5), which keeps the log of the sum near 0.
// With label smoothing s (Szegedy et al. 2016, arXiv 1512.00567, section 7; the label_smoothing of torch's cross_entropy)
// the loss is (1 - s) loss[n] + s mean_v(log sum exp(logits[n]) - logits[n, v]).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/data/batch.h"
#include "stepforge/kernels/divided.h"
#include "stepforge/kernels/loss_chunk.h"
#include "stepforge/kernels/soft_targets.h"

namespace stepforge {

/// Gradients are of scale * sum(weight * (loss + z_weight * lse^2)) over the tokens whose label is not ignored;
/// lse[n] = log sum_v exp(logits[n, v]).
struct LossGradient {
  at::Tensor scale = {};  ///< a scalar (kernels/scalars.h); undefined without gradients
  double z_weight = 0.0;
  at::Tensor weights = {};  ///< fp32 [n], of each token; undefined if all are 1
  /// If above 0, logits are cap * tanh(x / cap), and their gradient is that of x (cap_logits()).
  double cap = 0.0;
  double smoothing = 0.0;  ///< s above; of the losses that are computed together with gradients
  LossFunction loss =
      {};  ///< computes these losses instead, without z_weight and smoothing; empty: the cross-entropy
  /// Targets beside the label, of the losses of linear_cross_entropy() that are computed together with gradients; without
  /// smoothing and `loss`.
  SoftTargets soft = {};
  double share =
      1.0;  ///< of the cross-entropy in the gradient, beside the whole z-loss; below 1 without smoothing

  /// The kernels leave the rest of the target distribution to SoftLoss (soft_loss.h); the losses that they write are of the label.
  double label_share() const { return share - soft.weight; }
};

/// logits: [n, V] fp32 or bf16; labels: int32 or int64 [n]; token_loss: [n] fp32 (fp64 logits: fp64),
/// written. Throws Error on a label that is neither -100 nor in [0, V). No autograd.
void cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& token_loss);

/// The same, smoothed, and `logits` is overwritten by its gradient: exactly 0 in ignored rows.
void cross_entropy_forward_backward(const at::Tensor& logits, const at::Tensor& labels,
                                    const LossGradient& gradient, const at::Tensor& token_loss);

/// logits = cap * tanh(logits / cap), in place. fp32, bf16 or fp64.
void cap_logits(const at::Tensor& logits, double cap);

/// A low-rank term of the logits: factor values weight^T, added before they are capped.
struct LowRankLogits {
  at::Tensor values = {};  ///< [N, r] of hidden's type; undefined if there is no such term
  at::Tensor weight = {};  ///< [V, r] likewise
  double factor = 1.0;
  at::Tensor grad_values = {};  ///< [N, r] of hidden's type, written; undefined: not computed
  at::Tensor grad_weight = {};  ///< fp32 [V, r], likewise
};

/// logits += the term.
void add_low_rank(const at::Tensor& logits, const LowRankLogits& term);

/// The outputs of linear_cross_entropy. Undefined tensors are not computed.
struct LinearCrossEntropyOutputs {
  at::Tensor token_loss = {};      ///< fp32 [N], required
  at::Tensor grad_hidden = {};     ///< [N, D] of hidden's type
  at::Tensor grad_weight = {};     ///< fp32 [V, D]
  bool accumulate_weight = false;  ///< add to grad_weight instead of overwriting it
  at::Tensor logits = {};          ///< fp32 [N, V]; only without gradients
  /// The largest logits among the first top_vocabulary of each token whose label is not ignored, in descending order, and their
  /// places: fp32 and int32 [N, k]; only without gradients, and of a whole vocabulary.
  at::Tensor top_logits = {};
  at::Tensor top_ids = {};
  int64_t top_vocabulary = 0;
};

/// Head and loss in chunks of `chunk` tokens: logits = hidden weight^T, capped if gradient.cap says so, loss, and
/// `gradient`; the logits of all tokens are never materialized at once. hidden: [N, D], weight: [V, D] of one type.
/// With bf16 the products are summed in fp32; logits, their gradient and grad_hidden are rounded to bf16, as in
/// PyTorch; grad_weight and the loss are fp32. A chunk whose labels are all ignored costs nothing. Without gradients
/// only the cap of `gradient` is used; logits are returned capped.
///
/// If weight holds a part of the vocabulary, each rank calls it with its own part and the same other
/// arguments. Losses are those of the whole vocabulary, the same on all ranks; grad_weight and logits are this
/// rank's, and grad_hidden is its share, of which the caller forms the sum. The ranks exchange three numbers per
/// token, or the logits if ranks.parallel.whole_logits, which gradient.loss needs. Of `term` they have the same part: weight and
/// its gradient are this rank's, and grad_values is a share.
void linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                          const LossGradient& gradient, int64_t chunk,
                          const LinearCrossEntropyOutputs& outputs, const VocabularyPart& part = {},
                          const TensorExchange& ranks = {}, const LowRankLogits& term = {});

}  // namespace stepforge
