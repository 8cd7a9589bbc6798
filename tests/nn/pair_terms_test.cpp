// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/pair_terms.h"

#include <cmath>

#include <ATen/ops/allclose.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "stepforge/catalog/pair_losses.h"

namespace stepforge::testing {
namespace {

at::Tensor pairs(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).view({-1, 2});
}

/// Three pairs; of the last one the reference prefers the other answer.
PairScores some_scores() {
  return {.log_probs = pairs({-4.0, -9.0, -7.5, -6.0, -3.0, -12.0}),
          .lengths = pairs({2, 3, 5, 4, 1, 6}),
          .references = pairs({-5.0, -8.0, -7.0, -7.25, -9.0, -2.0})};
}

PairLoss loss_of(const PreferenceConfig& settings) {
  return find_pair_loss(settings);
}

double log_sigmoid(double x) {
  return -std::log1p(std::exp(-x));
}

double first_loss(const PreferenceConfig& settings) {
  return pair_terms(loss_of(settings), some_scores()).losses.select(0, 0).item<double>();
}

const std::vector<PreferenceConfig> kAll = {
    {.loss = PreferenceLoss::dpo},
    {.loss = PreferenceLoss::dpo, .beta = 0.7, .label_smoothing = 0.2, .length_normalized = true},
    {.loss = PreferenceLoss::hinge, .beta = 0.3},
    {.loss = PreferenceLoss::ipo},
    {.loss = PreferenceLoss::cpo, .beta = 0.4, .label_smoothing = 0.1},
    {.loss = PreferenceLoss::simpo, .margin = 0.3},
    {.loss = PreferenceLoss::orpo, .beta = 0.25},
    {.loss = PreferenceLoss::reward, .margin = 0.5, .center_weight = 0.05},
    {.loss = PreferenceLoss::kto, .beta = 0.3, .desirable_weight = 0.7, .undesirable_weight = 1.3},
    {.loss = PreferenceLoss::apo_zero_unpaired, .beta = 0.4}};

TEST(PairTerms, AreTheLossesOfThePapers) {
  // Of the first pair u = (-4 + 5) - (-9 + 8) = 2, and the answers have 2 and 3 tokens.
  constexpr double kNear = 1e-14;
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::dpo, .beta = 0.1}), -log_sigmoid(0.2), kNear);
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::dpo, .beta = 0.1, .label_smoothing = 0.25}),
              -0.75 * log_sigmoid(0.2) - 0.25 * log_sigmoid(-0.2), kNear);
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::dpo, .beta = 0.1, .length_normalized = true}),
              -log_sigmoid(0.1 * (1.0 / 2 + 1.0 / 3)), kNear);
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::hinge, .beta = 0.1}), 0.8, kNear);
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::ipo, .beta = 0.5}), std::pow(1.0 / 2 + 1.0 / 3 - 1.0, 2),
              kNear);
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::cpo, .beta = 0.1}), -log_sigmoid(0.5), kNear);
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::simpo, .beta = 2.0, .margin = 0.5}),
              -log_sigmoid(2.0 * (-2.0 + 3.0) - 0.5), kNear);
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::reward}), -log_sigmoid(5.0), kNear);
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::reward, .margin = 2.0, .center_weight = 0.01}),
              -log_sigmoid(3.0) + 0.01 * 13.0 * 13.0, kNear);
  const auto odds = [](double log_p) { return log_p - std::log1p(-std::exp(log_p)); };
  EXPECT_NEAR(first_loss({.loss = PreferenceLoss::orpo, .beta = 0.1}),
              -0.1 * log_sigmoid(odds(-2.0) - odds(-3.0)), kNear);
}

/// A desirable answer with x = 1 and an undesirable one with x = -1; x - z is 0.6 and -1.4.
TEST(PairTerms, AreTheLossesOfJudgedAnswers) {
  const PairScores alone{.log_probs = pairs({-4.0, 0.0, 0.0, -9.0}),
                         .lengths = pairs({2, 0, 0, 3}),
                         .references = pairs({-5.0, 0.0, 0.0, -8.0}),
                         .baseline = 0.4};
  const PairTerms terms = pair_terms(
      loss_of({.loss = PreferenceLoss::kto, .beta = 0.5, .desirable_weight = 2, .undesirable_weight = 3}),
      alone);
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const double good = 1.0 - sigmoid(0.5 * 0.6);
  const double bad = 1.0 - sigmoid(0.5 * 1.4);
  EXPECT_TRUE(at::allclose(terms.losses, at::tensor(std::vector<double>{2 * good, 3 * bad}), 1e-14));
  EXPECT_TRUE(at::allclose(
      terms.gradients, pairs({-2 * 0.5 * good * (1 - good), 0.0, 0.0, 3 * 0.5 * bad * (1 - bad)}), 1e-14));
  EXPECT_TRUE(at::allclose(pair_figures(terms),
                           at::tensor(std::vector<double>{1, 0.5, -0.5, -4.0, -9.0, 2, 1, 0.8}), 1e-14))
      << "each answer adds the baseline";
  const PairLoss zero = loss_of({.loss = PreferenceLoss::apo_zero_unpaired, .beta = 0.5});
  EXPECT_FALSE(zero.has_baseline);
  PairScores without = alone;
  without.baseline = 0.0;
  EXPECT_TRUE(at::allclose(pair_terms(zero, without).losses,
                           at::tensor(std::vector<double>{1 - sigmoid(0.5), sigmoid(-0.5)}), 1e-14));
}

/// Layouts are compared with it, since its sums are exact if its operands are.
TEST(PairTerms, AHingeOfJudgedAnswersIsLinearBelowItsMargin) {
  const PairLoss loss{.form = PairForm::hinge, .judged = true, .beta = 0.5, .undesirable_weight = 2.0};
  // Desirable ones at the margin and below it, undesirable ones above it and below it.
  const PairTerms terms = pair_terms(loss, {.log_probs = pairs({3, 0, 2, 0, 0, -3, 0, 1}),
                                            .lengths = pairs({2, 0, 2, 0, 0, 2, 0, 2}),
                                            .references = {},
                                            .baseline = 1.0});
  EXPECT_TRUE(terms.losses.equal(at::tensor(std::vector<double>{0, 0.5, 0, 2}, at::kDouble)));
  EXPECT_TRUE(terms.gradients.equal(pairs({0, 0, -0.5, 0, 0, 0, 0, 1})));
}

/// Central differences in fp64, whose own error is about 1e-9 here.
TEST(PairTerms, GradientsAreTheSlopesOfTheLosses) {
  constexpr double kStep = 1e-5;
  for (const PreferenceConfig& settings : kAll) {
    const PairLoss loss = loss_of(settings);
    const at::Tensor expected = at::zeros({3, 2}, at::kDouble);
    for (int64_t side = 0; side < 2; ++side) {
      const auto moved = [&](double by) {
        PairScores scores = some_scores();
        scores.log_probs.select(1, side).add_(by);
        return pair_terms(loss, scores).losses;
      };
      expected.select(1, side).copy_((moved(kStep) - moved(-kStep)) / (2 * kStep));
    }
    EXPECT_TRUE(at::allclose(pair_terms(loss, some_scores()).gradients, expected, 1e-7, 1e-8))
        << choice_name(settings.loss);
  }
}

TEST(PairTerms, RewardsAreBetaTimesWhatIsCompared) {
  const auto rewards = [](const PreferenceConfig& settings) {
    const at::Tensor found = pair_terms(loss_of(settings), some_scores()).rewards;
    return std::pair(found.select(0, 0).select(0, 0).item<double>(),
                     found.select(0, 0).select(0, 1).item<double>());
  };
  EXPECT_EQ(rewards({.loss = PreferenceLoss::dpo, .beta = 0.5}), std::pair(0.5, -0.5));
  EXPECT_EQ(rewards({.loss = PreferenceLoss::ipo, .beta = 0.5}), std::pair(0.5, -0.5))
      << "of sums, as TRL has it";
  EXPECT_EQ(rewards({.loss = PreferenceLoss::kto, .beta = 0.5}), std::pair(0.5, -0.5));
  EXPECT_EQ(rewards({.loss = PreferenceLoss::cpo, .beta = 0.5}), std::pair(-2.0, -4.5));
  EXPECT_EQ(rewards({.loss = PreferenceLoss::simpo, .beta = 2.0}), std::pair(-4.0, -6.0));
  EXPECT_EQ(rewards({.loss = PreferenceLoss::orpo, .beta = 0.5}), std::pair(-1.0, -1.5));
  EXPECT_EQ(rewards({.loss = PreferenceLoss::reward, .margin = 2.0}), std::pair(-4.0, -9.0));
}

/// A model that is sure of every token of both answers has infinite odds; the loss stays finite.
TEST(PairTerms, OddsOfCertainAnswersAreFinite) {
  PairScores scores = some_scores();
  scores.log_probs.zero_();
  const PairTerms terms = pair_terms(loss_of({.loss = PreferenceLoss::orpo}), scores);
  EXPECT_TRUE(terms.losses.isfinite().all().item<bool>());
  EXPECT_TRUE(terms.gradients.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace stepforge::testing
