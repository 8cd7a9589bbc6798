// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/loss.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/distillation_step.h"
#include "stepforge/nn/preference_step.h"
#include "stepforge/nn/vocabulary_part.h"

namespace stepforge {

namespace {

/// That of an adapter, if the call has one.
LowRankLogits term_of(const CallRun& run) {
  if (run.weights.size() < 2) return {};
  return {.values = run.operands[1],
          .weight = run.weight(1).value().detach(),
          .factor = attributes_of<LossAttributes>(run.call).adapter_scale};
}

void compute(const CallRun& run, const LossGradient& gradient, const LinearCrossEntropyOutputs& outputs,
             const LowRankLogits& term) {
  const auto& attributes = attributes_of<LossAttributes>(run.call);
  const Parameter& weight = run.weight(0);
  linear_cross_entropy(run.operands[0], weight.value().detach(), run.context.batch->labels, gradient,
                       attributes.chunk, outputs, vocabulary_part(weight.spec()),
                       attributes.parts > 1 ? run.resources.tensor : TensorExchange(), term);
}

/// The losses with the gradients of the operands, and those of the weights that are trained.
void compute_gradients(const CallRun& run, const LossGradient& gradient) {
  LinearCrossEntropyOutputs outputs{.token_loss = run.results[0].view({-1}), .grad_hidden = run.written[0]};
  LowRankLogits term = term_of(run);
  if (term.values.defined() && run.written.wanted(1)) term.grad_values = run.written[1];
  const bool adapts = term.values.defined() && run.weight(1).trained();
  if (adapts)
    term.grad_weight = at::empty(term.weight.sizes(), term.weight.options().dtype(compute_type(term.weight)));
  if (run.weight(0).trained()) {
    run.weight(0).write_now([&](const at::Tensor& weight_gradient, bool accumulate) {
      outputs.grad_weight = weight_gradient;
      outputs.accumulate_weight = accumulate;
      compute(run, gradient, outputs, term);
    });
  } else {
    compute(run, gradient, outputs, term);
  }
  if (adapts) run.weight(1).add_gradient(term.grad_weight);
}

/// In training losses are computed with their gradients.
void loss(const CallRun& run) {
  const at::Tensor token_loss = run.written[0];
  if (run.trains) return;
  compute(run, {.cap = attributes_of<LossAttributes>(run.call).logit_cap},
          {.token_loss = token_loss.view({-1})}, term_of(run));
}

/// In chunks, since libtorch copies bf16 rows to fp32 for it.
void scale_rows(const at::Tensor& rows, const at::Tensor& factors, int64_t chunk) {
  for (int64_t begin = 0; begin < rows.size(0); begin += chunk) {
    const int64_t count = std::min(chunk, rows.size(0) - begin);
    rows.narrow(0, begin, count).mul_(factors.narrow(0, begin, count).unsqueeze(1));
  }
}

/// Pairs of answers: how much a token counts depends on the losses of its pair, which are computed first. If only the gradient
/// of the input is wanted, which is one row for each token, one pass does both.
void pairs_backward(const CallRun& run) {
  const PreferenceStep& step = *run.context.preferences;
  const double cap = attributes_of<LossAttributes>(run.call).logit_cap;
  const auto& sum = run.resources.exchange.sum;
  const at::Tensor token_loss = run.results[0].view({-1});
  if (run.weights.size() == 1 && !run.weight(0).trained()) {
    const at::Tensor gradient = run.written[0];
    compute_gradients(run, {.scale = run.gradients[0], .cap = cap});
    scale_rows(gradient, step.weigh(token_loss, sum), attributes_of<LossAttributes>(run.call).chunk);
    return;
  }
  compute(run, {.cap = cap}, {.token_loss = token_loss}, term_of(run));
  const at::Tensor weights = step.weigh(token_loss, sum);
  compute_gradients(run, {.scale = run.gradients[0], .weights = weights, .cap = cap});
}

/// The gradient of each loss is the same scalar.
void loss_backward(const CallRun& run) {
  if (run.context.preferences != nullptr) return pairs_backward(run);
  const LossOptions& options = run.resources.loss;
  const DistillationStep* const teacher = run.context.distillation;
  const LossGradient gradient{.scale = run.gradients[0],
                              .z_weight = options.z_weight,
                              .weights = run.context.batch->weights,
                              .cap = attributes_of<LossAttributes>(run.call).logit_cap,
                              .smoothing = options.smoothing,
                              .loss = options.function,
                              .soft = teacher != nullptr ? teacher->targets() : SoftTargets()};
  compute_gradients(run, gradient);
  if (teacher != nullptr) teacher->report(gradient.soft);
}

}  // namespace

extern const CallEntry kLossEntry = {&kLoss, loss, loss_backward};

}  // namespace stepforge
