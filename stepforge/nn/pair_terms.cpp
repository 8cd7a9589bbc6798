// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/pair_terms.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "stepforge/base/error.h"

namespace stepforge {

namespace {

/// The compared value of each answer, and its derivative by the log-probability.
struct Compared {
  at::Tensor values;
  at::Tensor derivatives;
};

Compared compared(const PairLoss& loss, const PairScores& scores) {
  Compared made{loss.has_reference ? scores.log_probs - scores.references : scores.log_probs,
                at::ones_like(scores.log_probs)};
  if (loss.normalized) {
    made.values = made.values / scores.lengths;
    made.derivatives = made.derivatives / scores.lengths;
  }
  return made;
}

/// log(p / (1 - p)) of p = exp(value), which is below 1.
Compared log_odds(const Compared& of) {
  constexpr double kMost = -1e-12;
  const at::Tensor values = of.values.clamp_max(kMost);
  const at::Tensor rest = -values.expm1();  // 1 - p
  return {values - rest.log(), of.derivatives / rest};
}

/// The loss by the difference of the compared values, and its derivative.
std::pair<at::Tensor, at::Tensor> outer(const PairLoss& loss, const at::Tensor& difference) {
  const double beta = loss.beta;
  const at::Tensor z = difference * beta - loss.margin;
  switch (loss.form) {
    case PairForm::sigmoid: {
      const double s = loss.smoothing;
      return {at::log_sigmoid(z) * (s - 1.0) - at::log_sigmoid(-z) * s,
              ((-z).sigmoid() * (s - 1.0) + z.sigmoid() * s) * beta};
    }
    case PairForm::hinge:
      return {(1.0 - z).clamp_min(0.0), z.lt(1.0).to(z.scalar_type()) * -beta};
    case PairForm::square: {
      const at::Tensor error = difference - 1.0 / (2.0 * beta);
      return {error * error, error * 2.0};
    }
  }
  throw Error("a loss of pairs has no such form");
}

/// The loss of answers that are judged alone by v, and its derivative.
std::pair<at::Tensor, at::Tensor> of_judged(PairForm form, const at::Tensor& v) {
  switch (form) {
    case PairForm::sigmoid: {
      const at::Tensor loss = (-v).sigmoid();
      return {loss, -loss * v.sigmoid()};
    }
    case PairForm::hinge:
      return {(1.0 - v).clamp_min(0.0), -v.lt(1.0).to(v.scalar_type())};
    case PairForm::square:
      break;  // is of a difference
  }
  throw Error("a loss of judged answers has no such form");
}

/// [pairs, 2]: the losses of answers that are judged alone, and their derivatives.
std::pair<at::Tensor, at::Tensor> judged(const PairLoss& loss, const at::Tensor& values, double baseline) {
  const auto of_both = [&](double desirable, double undesirable) {
    return at::tensor({desirable, undesirable}, values.options());
  };
  const at::Tensor slope = of_both(loss.beta, -loss.beta);
  const at::Tensor weights = of_both(loss.desirable_weight, loss.undesirable_weight);
  const auto [losses, derivatives] = of_judged(loss.form, (values - baseline) * slope);
  return {losses * weights, derivatives * (slope * weights)};
}

/// The losses of pairs, and their derivatives by the compared values of both answers.
std::pair<at::Tensor, at::Tensor> of_answers(const PairLoss& loss, const at::Tensor& values,
                                             const at::Tensor& present, double baseline) {
  if (loss.judged) {
    const auto [losses, slopes] = judged(loss, values, baseline);
    return {(losses * present).sum(1), slopes * present};
  }
  const auto [losses, slope] = outer(loss, values.select(1, 0) - values.select(1, 1));
  return {losses, at::stack({slope, -slope}, 1)};
}

}  // namespace

PairTerms pair_terms(const PairLoss& loss, const PairScores& scores) {
  const at::NoGradGuard no_grad;
  const Compared plain = compared(loss, scores);
  const Compared by = loss.log_odds ? log_odds(plain) : plain;
  const at::Tensor present = scores.lengths.gt(0).to(at::kDouble);
  const auto [losses, slopes] = of_answers(loss, by.values, present, scores.baseline);
  const double weight = loss.weight;
  const at::Tensor rewarded = loss.has_reference ? scores.log_probs - scores.references : plain.values;
  PairTerms terms{.losses = losses * weight,
                  .gradients = slopes * by.derivatives * weight,
                  .rewards = rewarded * (loss.log_odds ? weight : loss.beta),
                  .log_probs = loss.has_reference ? scores.log_probs : plain.values,
                  .present = present,
                  .baseline = scores.baseline};
  if (loss.center_weight > 0.0) {
    const at::Tensor both = by.values.sum(1);
    terms.losses.add_(both * both, loss.center_weight);
    terms.gradients.add_(both.unsqueeze(1) * by.derivatives, 2.0 * loss.center_weight);
  }
  return terms;
}

at::Tensor pair_figures(const PairTerms& terms) {
  const at::Tensor right = terms.rewards.select(1, 0).gt(terms.rewards.select(1, 1)).to(at::kDouble);
  const at::Tensor answers = terms.present.sum(0);
  const at::Tensor rewards = terms.rewards.sum(0);
  const at::Tensor log_probs = terms.log_probs.sum(0);
  return at::stack({answers.select(0, 0), rewards.select(0, 0), rewards.select(0, 1), log_probs.select(0, 0),
                    log_probs.select(0, 1), right.sum(), answers.select(0, 1),
                    answers.sum() * terms.baseline});
}

}  // namespace stepforge
