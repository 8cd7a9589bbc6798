// SPDX-License-Identifier: Apache-2.0
// The router of a mixture of experts: which experts each token takes, and with which weights.
//
//   score[n, e]   = softmax_e(logits[n])[e] or sigmoid(logits[n, e])
//   chosen(n)     = the k experts of largest score[n, e] + correction[e], inside the best groups of experts
//   weights[n, j] = factor * score[n, chosen j], with `normalize` divided by (their sum + epsilon)
//
// A correction changes the choice only, never a weight (arXiv:2408.15664). Softmax with `normalize` is the softmax of the
// chosen logits, so it covers softmax before top-k (Qwen3-MoE), renormalized (Mixtral), and after it (GPT-OSS).
//
// Two losses act on the logits. A token counts in them with the weight w[n] of its label in the loss of the step, 0 if
// that is ignored: padding, prompts and the ends of documents are routed like all tokens, but do not count. For each row r
// of the batch, W[r] is the sum of w over its tokens:
//
//   load[r, e] = sum_n w[n] [e in chosen(n)]        prob[r, e] = sum_n w[n] score[n, e] / sum_e score[n, e]
//   balance    = sum_r sum_e E / (k W[r]) load[r, e] prob[r, e]     (load is a constant in its gradient)
//   z          = sum_n w[n] (log sum_e exp(logits[n, e]))^2
//
// The balance loss is DeepSeek-V3's of each sequence (arXiv:2412.19437, section 2.1.2), W[r] in a row whose load is even;
// times the loss scale of the step, which is 1 / the sum of all w, it is the mean over the step. Both are sums over whole
// rows, so they do not depend on how rows are divided into micro-batches. The z-loss is that of arXiv:2202.08906.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/router_options.h"

namespace stepforge {

/// The losses in the gradients of logits, as they are added to the loss of the step: scale * (balance_weight * balance
/// + z_weight * z).
struct RouterLossGradient {
  double balance_weight = 0.0;
  double z_weight = 0.0;
  at::Tensor scale = {};  ///< a scalar (kernels/scalars.h); undefined without losses
};

/// Columns of the sums over the tokens of a row: load [E], prob [E], W, z.
constexpr int64_t router_columns(int64_t experts) {
  return 2 * experts + 2;
}

/// logits: [N, E] fp32 (or fp64, then so are weights). correction: [E] of their type, or undefined. indices: [N, k]
/// int32, written, by falling score; of equal ones the lowest index is first. Without a correction experts are compared by
/// logit: the same order, but different logits never tie. weights: [N, k], written. row_sums: [rows, router_columns(E)]
/// fp64, written, or undefined; then token_weights, [N] fp32, is not used. Sums are over fixed blocks of tokens: no
/// result depends on the number of threads. No autograd.
void router_forward(const at::Tensor& logits, const at::Tensor& correction, const at::Tensor& token_weights,
                    const RouterOptions& options, const at::Tensor& indices, const at::Tensor& weights,
                    const at::Tensor& row_sums);

/// d balance / d prob, [rows, E] fp64: E / (k W) load, or 0 for a row of which no token counts.
at::Tensor router_balance_factors(const at::Tensor& row_sums, int64_t chosen);

/// losses: [2] fp64, written: balance and z, without weights and scale.
void router_losses(const at::Tensor& row_sums, const RouterOptions& options, const at::Tensor& losses);

/// grad_logits: [N, E], written: of the weights, and of the losses if gradient.scale is defined. token_weights and
/// row_sums are those of the forward, used only then.
void router_backward(const at::Tensor& grad_weights, const at::Tensor& logits, const at::Tensor& indices,
                     const at::Tensor& token_weights, const at::Tensor& row_sums,
                     const RouterOptions& options, const RouterLossGradient& gradient,
                     const at::Tensor& grad_logits);

}  // namespace stepforge
