// SPDX-License-Identifier: Apache-2.0
// The head of a reward model against plain fp64 tensor operations under libtorch's autograd.
#include "stepforge/modelspec/calls/score.h"

#include <optional>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "stepforge/nn/preference_step.h"
#include "tests/nn/one_call.h"
#include "tests/nn/reference.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

ModelConfig score_config(bool tied = false) {
  ModelConfig config = tiny_config("llama", tied);
  config.head = HeadKind::score;
  return config;
}

/// A row of `tokens` tokens that ends with `padding` tokens of padding, with one pair: the answers end at `middle` and at the
/// padding, and each has one token that counts.
Batch one_pair(int64_t tokens, int32_t middle, int32_t padding = 3) {
  const auto end = static_cast<int32_t>(tokens) - padding;
  Row row = made_up_row(0, tokens, 96, {middle, end});
  row.counted.assign(static_cast<size_t>(tokens) + 1, 0);
  row.counted.at(static_cast<size_t>(middle) - 1) = row.counted.at(static_cast<size_t>(end) - 1) = 1;
  row.pairs = {{.number = 0, .begin = 0, .middle = middle, .end = end}};
  Batch batch = empty_batch(tokens, 1);
  append_row(row, 0, batch);
  return batch;
}

/// The head of a small reward model on a batch of pairs.
class ScoreHead {
 public:
  ScoreHead(Batch rows, const PairLoss& loss)
      : batch(std::move(rows)),
        step_(loss, batch.host, at::kCPU, {}, scalar(0), [this](const PairReport& made) { report = made; }) {
    norm.value().detach().copy_(random_tensor({tiny.config.dim}, 1) * 0.25 + 1.0);
    weight.value().detach().copy_(random_tensor({1, tiny.config.dim}, 2));
    tiny.start_gradients();
    context.batch = &batch;
    context.preferences = &step_;
  }

  LossResult train(const at::Tensor& hidden, double scale) {
    return tiny.model.heads.front()->loss_with_gradients({hidden}, context, scalar(scale));
  }

  TinyModel tiny{score_config()};
  Parameter& norm = tiny.parameter("head.norm");
  Parameter& weight = tiny.parameter("head.score");
  BatchTensors batch;
  Context context;
  std::optional<PairReport> report;

 private:
  PreferenceStep step_;
};

/// Also of more tokens than are widened at once.
TEST(Score, HasTheLossAndTheGradientsOfTheScoresAtTheLastTokens) {
  const PairLoss loss{.scores = true, .beta = 1.0, .margin = 0.25, .center_weight = 0.1};
  for (const int64_t tokens : {int64_t{24}, kScoreTokens + 100}) {
    SCOPED_TRACE(tokens);
    const auto middle = static_cast<int32_t>(tokens / 3);
    ScoreHead head(one_pair(tokens, middle), loss);
    const at::Tensor hidden = random_tensor({tokens, head.tiny.config.dim}, 3);
    const at::Tensor hidden64 = leaf64(hidden);
    const at::Tensor norm64 = leaf64(head.norm.value());
    const at::Tensor weight64 = leaf64(head.weight.value());
    const at::Tensor scores = at::matmul(reference_norm(hidden64, norm64, 1e-5), weight64.t()).view({-1});
    const at::Tensor better = scores.select(0, middle - 1);
    const at::Tensor other = scores.select(0, tokens - 4);
    const at::Tensor expected =
        (better + other).square() * 0.1 - at::log_sigmoid((better - other - 0.25).view({1})).sum();
    torch::autograd::backward({expected * 0.125});

    const LossResult found = head.train(hidden, 0.125);
    expect_near(found.token_loss.neg(), scores, 2e-6, "scores");
    ASSERT_TRUE(head.report);
    EXPECT_NEAR(head.report->loss.item<double>(), expected.item<double>(),
                1e-5 * (1.0 + expected.item<double>()));
    EXPECT_NEAR(head.report->figures.select(0, 1).item<double>(), better.item<double>(), 1e-4);
    EXPECT_NEAR(head.report->figures.select(0, 2).item<double>(), other.item<double>(), 1e-4);
    expect_near(found.input_gradients.at(0), hidden64.grad(), 2e-6, "hidden");
    expect_near(head.norm.gradient(), norm64.grad(), 2e-6, "norm");
    expect_near(head.weight.gradient(), weight64.grad(), 2e-6, "weight");
    EXPECT_TRUE(at::equal(
        head.tiny.model.heads.front()->loss({hidden}, head.context, /*with_logits=*/false).token_loss,
        found.token_loss));
  }
}

TEST(Score, OnlyTheLastTokensOfAnswersHaveAGradient) {
  const PairLoss loss{.scores = true, .beta = 1.0};
  ScoreHead head(one_pair(24, 8), loss);
  const LossResult found = head.train(random_tensor({24, head.tiny.config.dim}, 3), 1.0);
  const at::Tensor rows = found.input_gradients.at(0).abs().sum(1);
  for (int64_t token = 0; token < 24; ++token)
    EXPECT_EQ(rows.select(0, token).item<double>() > 0.0, token == 7 || token == 20) << token;
}

TEST(Score, AddsToTheGradientOfTheStep) {
  const PairLoss loss{.scores = true, .beta = 1.0};
  ScoreHead head(one_pair(24, 8), loss);
  const at::Tensor hidden = random_tensor({24, head.tiny.config.dim}, 3);
  head.train(hidden, 1.0);
  const at::Tensor once = head.weight.gradient().clone();
  head.train(hidden, 1.0);
  expect_near(head.weight.gradient(), once * 2, 1e-6, "added");
}

TEST(Score, IsNotRoundedToTheComputeType) {
  TinyModel tiny(score_config(), DType::bf16);
  Parameter& weight = tiny.parameter("head.score");
  const at::Tensor x = random_tensor({5, tiny.config.dim}, 3, at::kBFloat16);
  const CallList list = one_call(kScore, {tiny.config.dim}, {}, {&weight.spec()});
  ListBlock block(list, list, tiny.store.lookup(), std::make_shared<const LayerResources>());
  const BatchTensors batch(made_up_batch(1, 5, 96));
  Context context;
  context.batch = &batch;
  const at::Tensor found = block.forward({x}, context, /*trains=*/false).outputs.front();
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  const at::Tensor expected =
      at::matmul(x.to(at::kDouble), weight.value().detach().to(at::kDouble).t()).neg();
  expect_near(found, expected, 1e-6, "scores");
}

TEST(Score, HasNoLogitsAndLearnsFromPairsOnly) {
  TinyModel tiny(score_config());
  const BatchTensors batch(one_pair(24, 8));
  Context context;
  context.batch = &batch;
  const at::Tensor hidden = random_tensor({24, tiny.config.dim}, 3);
  Head& head = *tiny.model.heads.front();
  EXPECT_CONTAINS(message_of<UsageError>([&] { head.loss({hidden}, context, /*with_logits=*/true); }),
                  "reward model");
  EXPECT_CONTAINS(message_of<UsageError>([&] { head.last_logits({hidden}, context); }), "writes no text");
  EXPECT_CONTAINS(message_of<Error>([&] { head.loss_with_gradients({hidden}, context, scalar(1.0)); }),
                  "pairs of answers");
}

/// The embedding of a model that would tie it has no use in the head.
TEST(Score, HasWeightsOfItsOwn) {
  const TinyModel tiny(score_config(/*tied=*/true));
  EXPECT_TRUE(tiny.spec.ties.empty());
  EXPECT_EQ(tiny.spec.find_parameter("head.weight"), nullptr);
  EXPECT_EQ(tiny.spec.find_parameter("head.score")->shape, (std::vector<int64_t>{1, tiny.config.dim}));
}

}  // namespace
}  // namespace stepforge::testing
