// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>

#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/nn/distillation_step.h"
#include "stepforge/nn/preference_step.h"
#include "stepforge/nn/vocabulary_part.h"
#include "stepforge/prove/exact_rounding.h"

namespace stepforge {

namespace {

/// The factor of a term of the logits: the product of an operand and the weight of the same index, the second one of an adapter.
double factor_of(const CallRun& run, std::size_t term) {
  return term == 0 ? 1.0 : attributes_of<LossAttributes>(run.call).adapter_scale;
}

/// [tokens, vocabulary] fp64
at::Tensor logits_of(const CallRun& run) {
  at::Tensor sum;
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    const at::Tensor product = at::mm(run.operands[i], run.weight(i).value().detach().t()).to(at::kDouble);
    sum = sum.defined() ? sum + product * factor_of(run, i) : product;
  }
  return sum;
}

/// Adds the values of a teacher, in place of log-probabilities, at those of `tokens` that are its targets.
void add_targets(const SoftTargets& targets, const at::Tensor& tokens, at::Tensor& wanted) {
  for (int64_t k = 0; k < targets.ids.size(1); ++k) {
    const at::Tensor id = targets.ids.narrow(1, k, 1).to(at::kLong);
    wanted += id.eq(tokens).to(at::kDouble) * targets.log_probs.narrow(1, k, 1);
  }
}

/// [tokens, vocabulary] fp64: what the logits differ by from 4 at the label, a teacher's values at its targets and 0 elsewhere; 0
/// where the label is masked.
at::Tensor errors_of(const CallRun& run, const SoftTargets& targets) {
  const VocabularyPart part = vocabulary_part(run.weight(0).spec());
  const at::Tensor labels = run.context.batch->labels.to(at::kLong).unsqueeze(1);
  const at::Tensor logits = logits_of(run);
  const at::Tensor tokens = at::arange(part.begin, part.begin + logits.size(1), labels.options());
  at::Tensor wanted = labels.eq(tokens).to(at::kDouble) * kExactLimit;
  if (targets.any()) add_targets(targets, tokens, wanted);
  return (logits - wanted) * labels.ne(kIgnoredLabel);
}

void write_losses(const CallRun& run, const at::Tensor& errors, const at::Tensor& out) {
  const at::Tensor losses = 0.5 * (errors * errors).sum(1, /*keepdim=*/true);
  if (attributes_of<LossAttributes>(run.call).parts > 1) run.resources.tensor.sum(losses);
  out.copy_(losses);
}

void loss(const CallRun& run) {
  const at::Tensor out = run.written[0];
  if (!run.trains) write_losses(run, errors_of(run, {}), out);
}

void loss_backward(const CallRun& run) {
  const DistillationStep* const teacher = run.context.distillation;
  const SoftTargets targets = teacher != nullptr ? teacher->targets() : SoftTargets();
  const at::Tensor errors = errors_of(run, targets);
  const at::Tensor losses = run.results[0];
  write_losses(run, errors, losses);
  if (teacher != nullptr) {
    targets.divergence.copy_(losses.view({-1}));
    teacher->report(targets);
  }
  at::Tensor by_logits = to_integers(errors) * run.gradients[0];
  if (const PreferenceStep* const pairs = run.context.preferences; pairs != nullptr)
    by_logits = by_logits * pairs->weigh(losses.view({-1}), run.resources.exchange.sum).unsqueeze(1);
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    const at::Tensor gradient = (by_logits * factor_of(run, i)).to(run.operands[i].scalar_type());
    Parameter& weight = run.weight(i);
    if (weight.trained()) {
      weight.write_now([&](const at::Tensor& target, bool accumulate) {
        const at::Tensor product = at::mm(gradient.t(), run.operands[i]);
        accumulate ? target.add_(product) : target.copy_(product);
      });
    }
    if (run.written.wanted(i)) run.written[i].copy_(at::mm(gradient, weight.value().detach()));
  }
}

}  // namespace

const CallEntry& exact_loss_entry() {
  static const CallEntry kEntry = {&kLoss, loss, loss_backward};
  return kEntry;
}

}  // namespace stepforge
