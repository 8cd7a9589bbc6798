// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/soft_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

/// The places of some tokens [n, m] in logits of a part of the vocabulary.
struct Columns {
  at::Tensor index;      ///< int64 [n, m]; 0 for those of other parts
  at::Tensor elsewhere;  ///< bool [n, m]; undefined if there are no other parts

  void drop_others(const at::Tensor& values) const {
    if (elsewhere.defined()) values.masked_fill_(elsewhere, 0);
  }
};

Columns columns_of(const at::Tensor& ids, const at::Tensor& logits, const VocabularyPart& part) {
  Columns found{ids.to(at::kLong, /*non_blocking=*/false, /*copy=*/true), {}};
  if (part.size == 0) return found;
  found.index.sub_(part.begin);
  found.elsewhere = found.index.lt(0).logical_or_(found.index.ge(logits.size(1)));
  found.index.masked_fill_(found.elsewhere, 0);
  return found;
}

at::Tensor gathered(const at::Tensor& logits, const Columns& columns) {
  at::Tensor values = logits.gather(1, columns.index).to(compute_type(logits));
  columns.drop_others(values);
  return values;
}

}  // namespace

SoftLoss::SoftLoss(const LossGradient& gradient, const at::Tensor& logits, const at::Tensor& labels,
                   const VocabularyPart& part, const TensorExchange& ranks)
    : gradient_(gradient), labels_(labels) {
  const SoftTargets& soft = gradient.soft;
  if (!soft.any()) return;
  const auto sum_of = [](const at::Tensor& values) { return values.sum(1, /*keepdim=*/false, at::kDouble); };
  const at::Tensor log_probs = soft.log_probs.to(compute_type(logits));
  slopes_ = log_probs.exp();
  const at::Tensor expected_log = sum_of(slopes_ * log_probs);
  const at::Tensor of_label =
      gathered(logits, columns_of(labels.clamp_min(0).unsqueeze(1), logits, part)).squeeze(1);
  const Columns columns = columns_of(soft.ids, logits, part);
  columns.drop_others(slopes_);
  at::Tensor values = gathered(logits, columns);
  difference_ = of_label.to(at::kDouble) - sum_of(values * slopes_);
  if (ranks.several()) ranks.sum(difference_);
  difference_.add_(expected_log);
  if (gradient.cap > 0) slopes_.mul_(values.div_(gradient.cap).square_().neg_().add_(1));
  index_ = columns.index;
  if (columns.elsewhere.defined()) repeat_own(columns.elsewhere);
  index_.add_(at::arange(logits.size(0), index_.options()).mul_(logits.size(1)).unsqueeze(1));
}

/// So that writing those of other parts changes nothing.
void SoftLoss::repeat_own(const at::Tensor& elsewhere) {
  const at::Tensor own = elsewhere.to(at::kByte).argmin(1, /*keepdim=*/true);  // of a row that has one
  index_ = at::where(elsewhere, index_.gather(1, own), index_);
  slopes_ = at::where(elsewhere, slopes_.gather(1, own), slopes_);
}

void SoftLoss::add_to(const at::Tensor& logits_gradient, const at::Tensor& token_loss) const {
  const SoftTargets& soft = gradient_.soft;
  if (!soft.any()) return;
  const at::Tensor ignored = labels_.eq(kIgnoredLabel);
  const at::Tensor divergence = (token_loss.to(at::kDouble) + difference_).masked_fill_(ignored, 0);
  soft.divergence.copy_(divergence);
  token_loss.mul_(1.0 - soft.weight).add_(divergence, soft.weight);
  at::Tensor scale = gradient_.scale.expand_as(difference_) * -soft.weight;
  if (gradient_.weights.defined()) scale = scale * gradient_.weights;
  scale.masked_fill_(ignored, 0);
  slopes_.mul_(scale.to(slopes_.scalar_type()).unsqueeze(1));
  // Not scatter_ nor scatter_add_, which on the CPU copy all logits of bf16 to fp32.
  slopes_.add_(logits_gradient.take(index_));
  logits_gradient.put_(index_, slopes_.to(logits_gradient.scalar_type()));
}

namespace {

void losses_at_temperature_one(const at::Tensor& logits, const at::Tensor& labels,
                               const LossGradient& gradient, const at::Tensor& token_loss,
                               const EntropyOfLogits& entropy) {
  const SoftLoss soft(gradient, logits, labels, entropy.part, entropy.ranks);
  entropy.compute(logits, gradient, token_loss);
  soft.add_to(logits, token_loss);
}

/// Of T^2 KL alone; its derivative by logits / T is T^2 (q - p), and by the logits T (q - p).
LossGradient of_the_teacher(const LossGradient& gradient) {
  const double temperature = gradient.soft.temperature;
  LossGradient made = gradient;
  made.scale = gradient.scale * (gradient.soft.weight * temperature);
  made.z_weight = 0.0;
  made.cap = gradient.cap / temperature;
  made.soft.weight = 1.0;
  made.soft.temperature = 1.0;
  return made;
}

LossGradient of_the_label(const LossGradient& gradient) {
  LossGradient made = gradient;
  made.share = 1.0 - gradient.soft.weight;
  made.soft = {};
  return made;
}

}  // namespace

void losses_with_soft_targets(const at::Tensor& logits, const at::Tensor& labels,
                              const LossGradient& gradient, const at::Tensor& token_loss,
                              const EntropyOfLogits& entropy) {
  const double temperature = gradient.soft.temperature;
  if (temperature == 1.0) return losses_at_temperature_one(logits, labels, gradient, token_loss, entropy);
  const double weight = gradient.soft.weight;
  const at::Tensor softened = logits / temperature;
  const at::Tensor divergence = at::empty_like(token_loss);
  losses_at_temperature_one(softened, labels, of_the_teacher(gradient), divergence, entropy);
  entropy.compute(logits, of_the_label(gradient), token_loss);
  logits.add_(softened);
  token_loss.mul_(1.0 - weight).add_(divergence, weight * temperature * temperature);
}

}  // namespace stepforge
