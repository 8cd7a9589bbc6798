// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/preference_step.h"

#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/data/context_part.h"

namespace stepforge {

namespace {

at::Tensor lengths_of(const Batch& batch) {
  std::vector<double> lengths;
  for (const AnswerPair& pair : batch.pairs)
    for (const Answer& answer : pair.answers) lengths.push_back(answer.labels);
  return at::tensor(lengths, at::device(at::kCPU).dtype(at::kDouble)).view({-1, 2});
}

/// The tokens of an answer that count, as far as this rank has them. A score is that at the last token: all tokens of an
/// answer are inputs of its row, also the last one, which has no label.
std::vector<TokenRange> tokens_of(const PairLoss& loss, const Batch& batch, const Answer& answer) {
  const int32_t begin = loss.scores ? answer.end - 1 : answer.begin;
  return held_tokens(batch, {begin, answer.end - begin});
}

}  // namespace

PreferenceStep::PreferenceStep(const PairLoss& loss, const Batch& batch, at::Device device,
                               const at::Tensor& references, at::Tensor sft_scale,
                               std::function<void(const PairReport&)> on_report, double baseline)
    : loss_(&loss),
      batch_(&batch),
      references_(references.defined() ? references.to(device) : references),
      lengths_(lengths_of(batch).to(device)),
      sft_scale_(std::move(sft_scale)),
      on_report_(std::move(on_report)),
      baseline_(baseline) {}

at::Tensor answer_log_probs(const PairLoss& loss, const Batch& batch, const at::Tensor& token_loss) {
  std::vector<at::Tensor> sums;
  for (const AnswerPair& pair : batch.pairs) {
    for (const Answer& answer : pair.answers) {
      at::Tensor sum = at::zeros({}, token_loss.options().dtype(at::kDouble));
      for (const TokenRange& range : tokens_of(loss, batch, answer))
        sum = sum - token_loss.narrow(0, range.begin, range.size).sum(at::kDouble);
      sums.push_back(sum);
    }
  }
  return at::stack(sums).view({-1, 2});
}

at::Tensor PreferenceStep::weigh(const at::Tensor& token_loss,
                                 const std::function<void(const at::Tensor&)>& sum) const {
  const at::NoGradGuard no_grad;
  const at::Tensor weights = at::zeros_like(token_loss, at::kFloat);
  if (batch_->pairs.empty()) return weights;
  const at::Tensor sums = answer_log_probs(*loss_, *batch_, token_loss);
  if (sum) sum(sums);
  const PairTerms terms = pair_terms(*loss_, {sums, lengths_, references_, baseline_});
  at::Tensor losses = terms.losses;
  const at::Tensor slopes = terms.gradients.neg();  // by the cross-entropy, which is -log p
  if (loss_->sft_weight > 0.0) {
    const at::Tensor scale = sft_scale_ * loss_->sft_weight;
    losses = losses - sums.select(1, 0) * scale;
    slopes.select(1, 0).add_(scale);
  }
  for (size_t i = 0; i < batch_->pairs.size(); ++i)
    for (size_t k = 0; k < 2; ++k)
      for (const TokenRange& range : tokens_of(*loss_, *batch_, batch_->pairs[i].answers[k]))
        weights.narrow(0, range.begin, range.size)
            .copy_(slopes.select(0, static_cast<int64_t>(i)).select(0, static_cast<int64_t>(k)));
  // Of the ranks that have parts of the same rows the first one adds the loss (Batch::loss_weight).
  const at::Tensor loss = losses.sum();
  if (on_report_) on_report_({batch_->part.index == 0 ? loss : at::zeros_like(loss), pair_figures(terms)});
  return weights;
}

}  // namespace stepforge
