// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/loss.h"

#include <algorithm>

#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/distillation_step.h"
#include "stepforge/nn/preference_step.h"
#include "stepforge/nn/vocabulary_part.h"

namespace stepforge {

namespace {

void compute(const CallRun& run, const LossGradient& gradient, const LinearCrossEntropyOutputs& outputs) {
  const auto& attributes = attributes_of<LossAttributes>(run.call);
  const Parameter& weight = run.weight(0);
  linear_cross_entropy(run.operands[0], weight.value().detach(), run.context.batch->labels, gradient,
                       attributes.chunk, outputs, vocabulary_part(weight.spec()),
                       attributes.parts > 1 ? run.resources.tensor : TensorExchange());
}

/// In training losses are computed with their gradients.
void loss(const CallRun& run) {
  const at::Tensor token_loss = run.written[0];
  if (run.trains) return;
  compute(run, {.cap = attributes_of<LossAttributes>(run.call).logit_cap},
          {.token_loss = token_loss.view({-1})});
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
  if (!run.weight(0).trained()) {
    const at::Tensor gradient = run.written[0];
    compute(run, {.scale = run.gradients[0], .cap = cap},
            {.token_loss = token_loss, .grad_hidden = gradient});
    scale_rows(gradient, step.weigh(token_loss, sum), attributes_of<LossAttributes>(run.call).chunk);
    return;
  }
  compute(run, {.cap = cap}, {.token_loss = token_loss});
  const at::Tensor weights = step.weigh(token_loss, sum);
  LinearCrossEntropyOutputs outputs{.token_loss = token_loss, .grad_hidden = run.written[0]};
  run.weight(0).write_now([&](const at::Tensor& weight_gradient, bool accumulate) {
    outputs.grad_weight = weight_gradient;
    outputs.accumulate_weight = accumulate;
    compute(run, {.scale = run.gradients[0], .weights = weights, .cap = cap}, outputs);
  });
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
  LinearCrossEntropyOutputs outputs{.token_loss = run.results[0].view({-1}), .grad_hidden = run.written[0]};
  if (run.weight(0).trained()) {
    run.weight(0).write_now([&](const at::Tensor& weight_gradient, bool accumulate) {
      outputs.grad_weight = weight_gradient;
      outputs.accumulate_weight = accumulate;
      compute(run, gradient, outputs);
    });
  } else {
    compute(run, gradient, outputs);
  }
  if (teacher != nullptr) teacher->report(gradient.soft);
}

}  // namespace

extern const CallEntry kLossEntry = {&kLoss, loss, loss_backward};

}  // namespace stepforge
