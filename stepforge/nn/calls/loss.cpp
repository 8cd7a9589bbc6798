// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/loss.h"

#include "stepforge/kernels/cross_entropy.h"
#include "stepforge/nn/call_entries.h"
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

/// The gradient of each loss is the same scalar.
void loss_backward(const CallRun& run) {
  const LossOptions& options = run.resources.loss;
  const LossGradient gradient{.scale = run.gradients[0],
                              .z_weight = options.z_weight,
                              .weights = run.context.batch->weights,
                              .cap = attributes_of<LossAttributes>(run.call).logit_cap,
                              .smoothing = options.smoothing,
                              .loss = options.function};
  LinearCrossEntropyOutputs outputs{.token_loss = run.results[0].view({-1}), .grad_hidden = run.written[0]};
  if (!run.weight(0).trained()) return compute(run, gradient, outputs);
  run.weight(0).write_now([&](const at::Tensor& weight_gradient, bool accumulate) {
    outputs.grad_weight = weight_gradient;
    outputs.accumulate_weight = accumulate;
    compute(run, gradient, outputs);
  });
}

}  // namespace

extern const CallEntry kLossEntry = {&kLoss, loss, loss_backward};

}  // namespace stepforge
