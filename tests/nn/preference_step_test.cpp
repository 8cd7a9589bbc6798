// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/preference_step.h"

#include <cmath>
#include <optional>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "stepforge/data/context_part.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kRowTokens = 16;

/// A row with two pairs and padding: the answers have 2 and 1, and 1 and 2 tokens that count.
Batch two_pairs() {
  Batch batch = empty_batch(kRowTokens, 1);
  Row row;
  row.tokens.assign(kRowTokens + 1, 7);
  row.counted = {0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0};
  row.document_starts = {3, 6, 9, 12};
  row.pairs = {{.number = 4, .begin = 0, .middle = 3, .end = 6},
               {.number = 2, .begin = 6, .middle = 9, .end = 12}};
  append_row(row, 0, batch);
  return batch;
}

/// Hinge with beta 1: a pair weighs 1 if it counts, so all numbers are exact.
PairLoss hinge(double sft_weight = 0.0) {
  return {.form = PairForm::hinge, .beta = 1.0, .sft_weight = sft_weight};
}

at::Tensor scalar(double value) {
  return at::zeros({}, at::kDouble).fill_(value);
}

struct Weighed {
  at::Tensor weights;
  std::optional<PairReport> report;
};

Weighed weigh(const PairLoss& loss, const Batch& batch, const at::Tensor& token_loss,
              const std::function<void(const at::Tensor&)>& sum = {}) {
  Weighed found;
  const PreferenceStep step(loss, batch, at::kCPU, {}, scalar(0.5),
                            [&](const PairReport& report) { found.report = report; });
  found.weights = step.weigh(token_loss, sum);
  return found;
}

TEST(PreferenceStep, ABatchHasTheAnswersOfItsRows) {
  const Batch batch = two_pairs();
  ASSERT_EQ(batch.pairs.size(), 2U);
  EXPECT_EQ(batch.pairs[0], (AnswerPair{.number = 4, .answers = {Answer{0, 3, 2}, Answer{3, 6, 1}}}));
  EXPECT_EQ(batch.pairs[1], (AnswerPair{.number = 2, .answers = {Answer{6, 9, 1}, Answer{9, 12, 2}}}));
  EXPECT_EQ(batch.loss_weight(), 2.0) << "a pair weighs 1";
}

TEST(PreferenceStep, LowersTheBetterAnswersLossAndRaisesTheOthers) {
  const at::Tensor token_loss = at::zeros({kRowTokens}, at::kFloat);
  token_loss.narrow(0, 0, 2).fill_(1.0);  // log-probabilities -2 and -1.5, then -1 and -5
  token_loss.narrow(0, 4, 1).fill_(1.5);
  token_loss.narrow(0, 7, 1).fill_(1.0);
  token_loss.narrow(0, 9, 2).fill_(2.5);
  const Weighed found = weigh(hinge(), two_pairs(), token_loss);
  // The first pair has u = -0.5 and counts, the second u = 4 and does not.
  EXPECT_TRUE(at::equal(found.weights,
                        at::tensor(std::vector<float>{1, 1, 1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})));
  ASSERT_TRUE(found.report);
  EXPECT_EQ(found.report->loss.item<double>(), 1.5);
  EXPECT_TRUE(at::equal(found.report->figures,
                        at::tensor(std::vector<double>{2, -3.0, -6.5, -3.0, -6.5, 1, 2, 0}, at::kDouble)));
}

TEST(PreferenceStep, TheCrossEntropyOfBetterAnswersIsAdded) {
  const at::Tensor token_loss = at::zeros({kRowTokens}, at::kFloat);
  token_loss.narrow(0, 0, 2).fill_(1.0);
  const at::Tensor without = weigh(hinge(), two_pairs(), token_loss).weights;
  const Weighed with = weigh(hinge(/*sft_weight=*/4.0), two_pairs(), token_loss);
  // sft_scale is 0.5, so a token of a better answer weighs 2 more.
  EXPECT_TRUE(at::equal(with.weights - without,
                        at::tensor(std::vector<float>{2, 2, 2, 0, 0, 0, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0})));
  EXPECT_EQ(with.report->loss.item<double>(), (1 + 2) + 1 + 2.0 * 2);
}

/// A desirable answer and an undesirable one, each alone: their weights are the slopes of their losses.
TEST(PreferenceStep, JudgedAnswersAreRaisedOrLowered) {
  Batch batch = empty_batch(kRowTokens, 1);
  Row row;
  row.tokens.assign(kRowTokens + 1, 7);
  row.counted = {0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  row.document_starts = {3, 6};
  row.pairs = {{.number = 0, .begin = 0, .middle = 3, .end = 3},
               {.number = 1, .begin = 3, .middle = 3, .end = 6}};
  append_row(row, 0, batch);
  EXPECT_EQ(batch.loss_weight(), 2.0);
  const PairLoss loss{.judged = true, .beta = 0.5, .desirable_weight = 2.0, .undesirable_weight = 3.0};
  const at::Tensor token_loss = at::zeros({kRowTokens}, at::kFloat);
  token_loss.narrow(0, 0, 2).fill_(0.5);  // log-probabilities -1 and -2
  token_loss.narrow(0, 4, 1).fill_(2.0);
  std::optional<PairReport> report;
  const PreferenceStep step(
      loss, batch, at::kCPU, {}, scalar(0), [&](const PairReport& made) { report = made; },
      /*baseline=*/0.25);
  const at::Tensor weights = step.weigh(token_loss, {});
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const double good = sigmoid(-0.5 * (-1.0 - 0.25));  // 1 - sigmoid(beta (x - z))
  const double bad = sigmoid(-0.5 * (0.25 + 2.0));
  EXPECT_NEAR(weights.select(0, 0).item<double>(), 2.0 * 0.5 * good * (1 - good), 1e-7);
  EXPECT_NEAR(weights.select(0, 4).item<double>(), -3.0 * 0.5 * bad * (1 - bad), 1e-7);
  EXPECT_EQ(weights.narrow(0, 6, kRowTokens - 6).abs().sum().item<double>(), 0.0);
  ASSERT_TRUE(report);
  EXPECT_NEAR(report->loss.item<double>(), 2.0 * good + 3.0 * bad, 1e-12);
  EXPECT_TRUE(at::allclose(
      report->figures, at::tensor(std::vector<double>{1, -0.5, -1.0, -1.0, -2.0, 1, 1, 0.5}, at::kDouble)));
}

/// Cases 45 to 47 of silent faults: parts of rows have the numbers of whole rows.
TEST(PreferenceStep, PartsOfRowsHaveTheWeightsOfWholeRows) {
  const Batch whole = two_pairs();
  const at::Tensor token_loss = at::arange(kRowTokens, at::kFloat) / 4.0F;
  const PairLoss loss{.form = PairForm::sigmoid, .beta = 0.5, .sft_weight = 1.0};
  const Weighed expected = weigh(loss, whole, token_loss);
  double losses = 0.0;
  for (int64_t index = 0; index < 2; ++index) {
    const ContextPart part{.index = index, .degree = 2};
    const Batch own = take_part(whole, part);
    std::vector<int64_t> places;
    for (const TokenRange& range : token_ranges(part, kRowTokens))
      for (int64_t i = 0; i < range.size; ++i) places.push_back(range.begin + i);
    const at::Tensor index_of = at::tensor(places);
    const auto sum = [&](const at::Tensor& sums) {
      at::Tensor all = at::zeros_like(sums);
      for (int64_t other = 0; other < 2; ++other) {
        const Batch held = take_part(whole, {.index = other, .degree = 2});
        for (size_t i = 0; i < whole.pairs.size(); ++i)
          for (size_t k = 0; k < 2; ++k) {
            const Answer& answer = whole.pairs[i].answers[k];
            for (const TokenRange& range : held_tokens(held, {answer.begin, answer.end - answer.begin}))
              for (int64_t t = 0; t < range.size; ++t) {
                int64_t at = range.begin + t;  // in the part
                for (const TokenRange& of : token_ranges(held.part, kRowTokens)) {
                  if (at < of.size) {
                    all.select(0, static_cast<int64_t>(i)).select(0, static_cast<int64_t>(k)) -=
                        token_loss.select(0, of.begin + at).item<double>();
                    break;
                  }
                  at -= of.size;
                }
              }
          }
      }
      sums.copy_(all);
    };
    const Weighed found = weigh(loss, own, token_loss.index_select(0, index_of), sum);
    EXPECT_TRUE(at::allclose(found.weights, expected.weights.index_select(0, index_of), 1e-6, 0));
    losses += found.report->loss.item<double>();
    EXPECT_TRUE(at::allclose(found.report->figures, expected.report->figures, 1e-12, 0));
    EXPECT_EQ(own.loss_weight(), index == 0 ? 2.0 : 0.0);
  }
  EXPECT_NEAR(losses, expected.report->loss.item<double>(), 1e-12) << "one of the parts adds the loss";
}

/// The last token of an answer is one of its inputs, and no label.
TEST(PreferenceStep, ScoresAreThoseOfTheLastTokens) {
  const at::Tensor minus_scores = at::arange(kRowTokens, at::kFloat).neg();
  PairLoss loss = hinge();
  loss.scores = true;
  const Weighed found = weigh(loss, two_pairs(), minus_scores);
  // The scores are 2 and 5, then 8 and 11: both pairs count.
  EXPECT_TRUE(at::equal(found.weights,
                        at::tensor(std::vector<float>{0, 0, 1, 0, 0, -1, 0, 0, 1, 0, 0, -1, 0, 0, 0, 0})));
  ASSERT_TRUE(found.report);
  EXPECT_EQ(found.report->loss.item<double>(), 8.0);
  EXPECT_TRUE(at::equal(found.report->figures.narrow(0, 0, 3),
                        at::tensor(std::vector<double>{2, 10, 16}, at::kDouble)));
}

TEST(PreferenceStep, ABatchWithoutPairsWeighsNothing) {
  const Batch batch = padding_batch(kRowTokens, 1);
  const Weighed found = weigh(hinge(), batch, at::zeros({kRowTokens}, at::kFloat));
  EXPECT_TRUE(at::equal(found.weights, at::zeros({kRowTokens}, at::kFloat)));
  EXPECT_FALSE(found.report);
}

}  // namespace
}  // namespace stepforge::testing
