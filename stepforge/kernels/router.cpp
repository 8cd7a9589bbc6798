// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/router.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

void check_logits(const at::Tensor& logits, const at::Tensor& indices, const RouterOptions& options) {
  check_tensor(logits, "router logits", {logits.size(0), logits.size(1)}, compute_type(logits));
  check_router(options, logits.size(1));
  check_tensor(indices, "router indices", {logits.size(0), options.chosen}, at::kInt);
}

void check_sums(const at::Tensor& logits, const at::Tensor& token_weights, const at::Tensor& row_sums) {
  check_tensor(row_sums, "router row_sums", {row_sums.size(0), router_columns(logits.size(1))}, at::kDouble);
  check_tensor(token_weights, "router token_weights", {logits.size(0)}, at::kFloat);
  if (row_sums.size(0) < 1 || logits.size(0) % row_sums.size(0) != 0) {
    throw Error(
        format("router row_sums: {} tokens are not {} rows of one length", logits.size(0), row_sums.size(0)));
  }
}

at::Tensor scores_of(const at::Tensor& logits, const RouterOptions& options) {
  return options.score == RouterScore::softmax ? logits.softmax(1) : at::sigmoid(logits);
}

/// The k largest in the last dimension, by falling value; of equal ones the lowest index is first.
at::Tensor largest(const at::Tensor& values, int64_t k) {
  return std::get<1>(values.sort(/*stable=*/true, -1, /*descending=*/true)).narrow(-1, 0, k);
}

/// [N, E]: what experts are compared by; -inf for those of other groups.
at::Tensor keys_of(const at::Tensor& logits, const at::Tensor& correction, const RouterOptions& options) {
  at::Tensor values = scores_of(logits, options);
  if (correction.defined()) values = values + correction;
  at::Tensor keys = correction.defined() ? values : logits;
  if (options.groups == 1) return keys;
  const at::Tensor grouped = values.view({logits.size(0), options.groups, -1});
  const at::Tensor by_group =
      options.group_score == GroupScore::largest
          ? keys.view(grouped.sizes()).amax(2)
          : std::get<0>(grouped.topk(std::min<int64_t>(2, grouped.size(2)), 2)).sum(2);
  const at::Tensor groups = largest(by_group, options.chosen_groups);
  const at::Tensor kept = at::zeros_like(by_group, at::kBool).scatter(1, groups, true);
  return keys.view(grouped.sizes())
      .masked_fill(kept.logical_not().unsqueeze(2), -std::numeric_limits<double>::infinity())
      .view(keys.sizes());
}

}  // namespace

at::Tensor router_balance_factors(const at::Tensor& row_sums, int64_t chosen) {
  const int64_t experts = (row_sums.size(1) - 2) / 2;
  const at::Tensor total = row_sums.narrow(1, 2 * experts, 1);
  const at::Tensor factors =
      row_sums.narrow(1, 0, experts) * (static_cast<double>(experts) / static_cast<double>(chosen)) / total;
  return factors.masked_fill(total.eq(0), 0);
}

void router_forward(const at::Tensor& logits, const at::Tensor& correction, const at::Tensor& token_weights,
                    const RouterOptions& options, const at::Tensor& indices, const at::Tensor& weights,
                    const at::Tensor& row_sums) {
  check_logits(logits, indices, options);
  check_tensor(weights, "router weights", indices.sizes(), logits.scalar_type());
  if (correction.defined())
    check_tensor(correction, "router correction", {logits.size(1)}, logits.scalar_type());
  if (row_sums.defined()) check_sums(logits, token_weights, row_sums);
  pick(&KernelTable::router_forward, logits)(logits, correction, token_weights, options, indices, weights,
                                             row_sums);
}

void router_losses(const at::Tensor& row_sums, const RouterOptions& options, const at::Tensor& losses) {
  check_tensor(losses, "router losses", {2}, at::kDouble);
  const int64_t experts = (row_sums.size(1) - 2) / 2;
  const at::Tensor balance =
      (router_balance_factors(row_sums, options.chosen) * row_sums.narrow(1, experts, experts)).sum();
  losses.copy_(at::stack({balance, row_sums.select(1, 2 * experts + 1).sum()}));
}

void router_backward(const at::Tensor& grad_weights, const at::Tensor& logits, const at::Tensor& indices,
                     const at::Tensor& token_weights, const at::Tensor& row_sums,
                     const RouterOptions& options, const RouterLossGradient& gradient,
                     const at::Tensor& grad_logits) {
  check_logits(logits, indices, options);
  check_tensor(grad_weights, "router grad_weights", indices.sizes(), logits.scalar_type());
  check_tensor(grad_logits, "router grad_logits", logits.sizes(), logits.scalar_type());
  if (gradient.scale.defined()) {
    check_scalar(gradient.scale, "router scale");
    check_sums(logits, token_weights, row_sums);
  }
  pick(&KernelTable::router_backward, logits)(grad_weights, logits, indices, token_weights, row_sums, options,
                                              gradient, grad_logits);
}

void reference::router_forward(const at::Tensor& logits, const at::Tensor& correction,
                               const at::Tensor& token_weights, const RouterOptions& options,
                               const at::Tensor& indices, const at::Tensor& weights,
                               const at::Tensor& row_sums) {
  const at::Tensor chosen = largest(keys_of(logits, correction, options), options.chosen);
  const at::Tensor scores = scores_of(logits, options);
  at::Tensor values = scores.gather(1, chosen);
  if (options.normalize) values = values / (values.sum(1, /*keepdim=*/true) + options.epsilon);
  indices.copy_(chosen);
  weights.copy_(values * options.factor);
  if (!row_sums.defined()) return;
  const at::Tensor counted = token_weights.to(at::kDouble).unsqueeze(1);
  const at::Tensor load = at::zeros_like(scores).scatter(1, chosen, 1.0);
  const at::Tensor prob = scores / scores.sum(1, /*keepdim=*/true);
  const at::Tensor z = at::logsumexp(logits, {1}, /*keepdim=*/true).square();
  const at::Tensor terms = at::cat({load * counted, prob * counted, counted, z * counted}, 1);
  row_sums.copy_(terms.view({row_sums.size(0), -1, terms.size(1)}).sum(1));
}

void reference::router_backward(const at::Tensor& grad_weights, const at::Tensor& logits,
                                const at::Tensor& indices, const at::Tensor& token_weights,
                                const at::Tensor& row_sums, const RouterOptions& options,
                                const RouterLossGradient& gradient, const at::Tensor& grad_logits) {
  const at::Tensor chosen = indices.to(at::kLong);
  const at::Tensor scores = scores_of(logits, options);
  const at::Tensor values = scores.gather(1, chosen);
  at::Tensor grad = grad_weights * options.factor;
  if (options.normalize) {
    const at::Tensor sum = values.sum(1, /*keepdim=*/true) + options.epsilon;
    grad = (grad - (grad * values).sum(1, /*keepdim=*/true) / sum) / sum;
  }
  at::Tensor grad_scores = at::zeros_like(scores).scatter(1, chosen, grad);
  at::Tensor from_z = at::zeros_like(scores);
  if (gradient.scale.defined()) {
    const at::Tensor counted = token_weights.unsqueeze(1) * gradient.scale;
    const at::Tensor factors = router_balance_factors(row_sums, options.chosen)
                                   .repeat_interleave(logits.size(0) / row_sums.size(0), 0);
    const at::Tensor to_prob = factors * counted * gradient.balance_weight;
    const at::Tensor sum = scores.sum(1, /*keepdim=*/true);
    const at::Tensor mean = (to_prob * scores).sum(1, /*keepdim=*/true) / sum;
    grad_scores = grad_scores + (to_prob - mean) / sum;
    from_z = logits.softmax(1) * at::logsumexp(logits, {1}, /*keepdim=*/true) * counted *
             (2.0 * gradient.z_weight);
  }
  const at::Tensor inner = options.score == RouterScore::softmax
                               ? scores * (grad_scores - (grad_scores * scores).sum(1, /*keepdim=*/true))
                               : grad_scores * scores * (1 - scores);
  grad_logits.copy_(inner + from_z);
}

}  // namespace stepforge
