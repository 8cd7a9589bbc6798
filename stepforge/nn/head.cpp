// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/kernels/rms_norm.h"
#include "stepforge/nn/kv_cache.h"
#include "stepforge/nn/layers.h"
#include "stepforge/nn/norm_gradient.h"

namespace stepforge {

namespace {

struct Normed {
  at::Tensor out;
  at::Tensor rstd;
};

Normed norm(const at::Tensor& hidden, const Parameter& weight, const NormConstants& constants) {
  Normed normed{at::empty_like(hidden), at::empty({hidden.size(0)}, hidden.options().dtype(at::kFloat))};
  rms_norm_forward(hidden, weight.value(), constants.eps, normed.out, normed.rstd, constants.offset);
  return normed;
}

}  // namespace

LossResult LinearCrossEntropyHead::loss_with_gradients(const Bundle& inputs, const Context& context,
                                                       const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = inputs.at(0).detach();
  Normed normed = norm(hidden, norm_, traits_.norm);
  normed.out = all_tokens(normed.out, tensor_, context);

  LinearCrossEntropyOutputs outputs;
  outputs.token_loss = at::empty({normed.out.size(0)}, hidden.options().dtype(at::kFloat));
  outputs.grad_hidden = at::empty_like(normed.out);
  const auto compute = [&](const at::Tensor& weight_gradient, bool accumulate) {
    outputs.grad_weight = weight_gradient;
    outputs.accumulate_weight = accumulate;
    linear_cross_entropy(normed.out, weight_.value().detach(), context.batch->labels,
                         {.scale = scale,
                          .z_weight = traits_.z_weight,
                          .weights = context.batch->weights,
                          .cap = traits_.logit_cap,
                          .smoothing = traits_.smoothing,
                          .loss = traits_.loss},
                         chunk_, outputs, part_, parts());
  };
  if (weight_.trained()) {
    weight_.write_now(compute);
  } else {
    compute({}, false);
  }

  normed.out.reset();
  const at::Tensor gradient = leave_layer(outputs.grad_hidden, is_divided(weight_), tensor_, context);
  outputs.grad_hidden.reset();
  // In place: the gradient of the normed hidden becomes that of the hidden.
  NormGradient norm_gradient(norm_, takes_slice(tensor_, context) ? &tensor_ : nullptr);
  rms_norm_backward(gradient, hidden, norm_.value(), normed.rstd, at::Tensor(), gradient,
                    norm_gradient.target(), traits_.norm.offset);
  norm_gradient.finish();
  return {outputs.token_loss, at::Tensor(), {gradient}};
}

LossResult LinearCrossEntropyHead::loss(const Bundle& inputs, const Context& context, bool with_logits) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = all_tokens(norm(inputs.at(0), norm_, traits_.norm).out, tensor_, context);
  LinearCrossEntropyOutputs outputs;
  outputs.token_loss = at::empty({hidden.size(0)}, hidden.options().dtype(at::kFloat));
  if (with_logits) outputs.logits = at::empty({hidden.size(0), weight_.value().size(0)}, at::kFloat);
  linear_cross_entropy(hidden, weight_.value().detach(), context.batch->labels, {.cap = traits_.logit_cap},
                       chunk_, outputs, part_, parts());
  const at::Tensor logits = with_logits ? of_all_parts(outputs.logits) : outputs.logits;
  return {outputs.token_loss, logits, {}};
}

at::Tensor LinearCrossEntropyHead::last_logits(const Bundle& inputs, const Context& context) {
  const at::NoGradGuard no_grad;
  const int64_t rows = context.batch->host.rows;
  const at::Tensor hidden = all_tokens(inputs.at(0), tensor_, context);
  const int64_t count = hidden.size(0) / rows;
  const at::Tensor last = hidden.view({rows, count, hidden.size(1)}).select(1, count - 1).contiguous();
  at::Tensor logits = at::mm(norm(last, norm_, traits_.norm).out, weight_.value().detach().t());
  if (traits_.logit_cap > 0) cap_logits(logits, traits_.logit_cap);
  return of_all_parts(logits.to(at::kFloat));
}

at::Tensor LinearCrossEntropyHead::of_all_parts(const at::Tensor& logits) const {
  return is_divided(weight_) ? stepforge::of_all_parts(logits, part_, tensor_) : logits;
}

}  // namespace stepforge
