// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/router.h"

#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kRouterExperts = 16;
constexpr int64_t kRouterRows = 3;
constexpr int64_t kRouterLength = 150;  // two blocks of a partial sum
constexpr int64_t kRouterTokens = kRouterRows * kRouterLength;

struct RouterCase {
  std::string name;
  RouterOptions options;
  bool correction = false;
};

std::vector<RouterCase> router_cases() {
  using enum RouterScore;
  using enum GroupScore;
  return {
      {"qwen3", {.chosen = 4, .normalize = true}},
      {"not normalized", {.chosen = 4}},
      {"one expert", {.chosen = 1, .normalize = true}},
      {"all experts", {.chosen = kRouterExperts, .normalize = true, .factor = 2.0}},
      {"deepseek v2", {.chosen = 3, .groups = 4, .chosen_groups = 2, .group_score = largest, .factor = 16.0}},
      {"deepseek v3",
       {sigmoid, 4, 4, 2, two_largest, /*normalize=*/true, /*epsilon=*/1e-20, /*factor=*/2.5},
       /*correction=*/true},
      {"softmax with correction", {.chosen = 2, .normalize = true}, /*correction=*/true},
      {"sigmoid", {.score = sigmoid, .chosen = 2}}};
}

/// Weights of labels: some tokens do not count, the others differ; no token of the last row counts.
at::Tensor token_weights() {
  at::Tensor weights = at::empty({kRouterTokens});
  for (int64_t n = 0; n < kRouterTokens; ++n) {
    const bool counts = n % 5 != 2 && n < 2 * kRouterLength;
    weights.mutable_data_ptr<float>()[n] = counts ? 0.5F + 0.25F * static_cast<float>(n % 3) : 0.0F;
  }
  return weights;
}

struct Routed {
  at::Tensor indices;
  at::Tensor weights;
  at::Tensor row_sums;
  at::Tensor losses;
  at::Tensor grad_logits;
};

const RouterLossGradient& loss_gradient() {
  static const RouterLossGradient gradient = {0.5, 0.25, scalar(0.125)};
  return gradient;
}

Routed route(const at::Tensor& logits, const at::Tensor& correction, const RouterOptions& options,
             const at::Tensor& grad_weights) {
  const at::TensorOptions wide = logits.options().dtype(at::kDouble);
  Routed r = {at::empty({kRouterTokens, options.chosen}, at::kInt),
              at::empty({kRouterTokens, options.chosen}, logits.options()),
              at::empty({kRouterRows, router_columns(kRouterExperts)}, wide), at::empty({2}, wide),
              at::empty_like(logits)};
  const at::Tensor shift = correction.defined() ? correction.to(logits.scalar_type()) : correction;
  router_forward(logits, shift, token_weights(), options, r.indices, r.weights, r.row_sums);
  router_losses(r.row_sums, options, r.losses);
  router_backward(grad_weights.to(logits.scalar_type()), logits, r.indices, token_weights(), r.row_sums,
                  options, loss_gradient(), r.grad_logits);
  return r;
}

at::Tensor correction_of(const RouterCase& c) {
  return c.correction ? random_tensor({kRouterExperts}, 9) * 0.2 : at::Tensor();
}

at::Tensor logits_of() {
  return random_tensor({kRouterTokens, kRouterExperts}, 1) * 3;
}

at::Tensor grad_weights_of(const RouterCase& c) {
  return random_tensor({kRouterTokens, c.options.chosen}, 2);
}

// Finds what went wrong in VeOmni#715 (softmax of the softmax).
TEST(Router, AgreesWithTheFp64Reference) {
  for (const RouterCase& c : router_cases()) {
    const Routed actual = route(logits_of(), correction_of(c), c.options, grad_weights_of(c));
    const Routed expected =
        route(logits_of().to(at::kDouble), correction_of(c), c.options, grad_weights_of(c));
    EXPECT_TRUE(at::equal(actual.indices, expected.indices)) << c.name;
    expect_close(actual.weights, expected.weights, 32 * kEps32, c.name.c_str());
    expect_close(actual.row_sums, expected.row_sums, 32 * kEps32, c.name.c_str());
    expect_close(actual.losses, expected.losses, 32 * kEps32, c.name.c_str());
    expect_close(actual.grad_logits, expected.grad_logits, 128 * kEps32, c.name.c_str());
  }
}

/// The loss that the gradients are of, in tensor operations that autograd differentiates, for a choice that is given.
at::Tensor plain_loss(const at::Tensor& logits, const at::Tensor& indices, const RouterOptions& options,
                      const at::Tensor& grad_weights, const at::Tensor& row_sums) {
  const at::Tensor scores = options.score == RouterScore::softmax ? logits.softmax(1) : at::sigmoid(logits);
  const at::Tensor chosen = indices.to(at::kLong);
  at::Tensor weights = scores.gather(1, chosen);
  if (options.normalize) weights = weights / (weights.sum(1, true) + options.epsilon);
  const at::Tensor counted = token_weights().to(at::kDouble);
  const at::Tensor prob = scores / scores.sum(1, true) * counted.unsqueeze(1);
  const at::Tensor z = (at::logsumexp(logits, {1}).square() * counted).sum();
  at::Tensor balance = at::zeros({}, at::kDouble);
  for (int64_t r = 0; r < kRouterRows - 1; ++r) {  // no token of the last row counts
    const at::Tensor load = row_sums.select(0, r).narrow(0, 0, kRouterExperts);
    const double total = counted.narrow(0, r * kRouterLength, kRouterLength).sum().item<double>();
    const at::Tensor mean = prob.narrow(0, r * kRouterLength, kRouterLength).sum(0);
    balance = balance + (load * mean).sum() * static_cast<double>(kRouterExperts) /
                            (static_cast<double>(options.chosen) * total);
  }
  return (weights * options.factor * grad_weights.to(at::kDouble)).sum() +
         (balance * loss_gradient().balance_weight + z * loss_gradient().z_weight) * loss_gradient().scale;
}

// Finds what went wrong in AutoModel#1408 and #1412 (losses of routers without a gradient, or with a far larger one).
TEST(Router, GradientIsThatOfAutogradAndTheDerivative) {
  for (const RouterCase& c : router_cases()) {
    at::Tensor logits = logits_of().to(at::kDouble);
    const Routed r = route(logits, correction_of(c), c.options, grad_weights_of(c));
    logits.set_requires_grad(true);
    const auto loss = [&](const at::Tensor& x) {
      return plain_loss(x, r.indices, c.options, grad_weights_of(c), r.row_sums);
    };
    torch::autograd::backward({loss(logits)});
    expect_close(r.grad_logits, logits.grad(), 1e-12, c.name.c_str());
    // And the loss of the fused function itself, whose load is constant for so small a step.
    expect_derivative(
        [&](const at::Tensor& x) {
          const Routed moved = route(x, correction_of(c), c.options, grad_weights_of(c));
          const at::Tensor aux =
              moved.losses *
              at::tensor({loss_gradient().balance_weight, loss_gradient().z_weight}, at::kDouble);
          return (moved.weights * grad_weights_of(c).to(at::kDouble)).sum().item<double>() +
                 (aux.sum() * loss_gradient().scale).item<double>();
        },
        logits.detach(), r.grad_logits, c.name.c_str());
  }
}

TEST(Router, WithoutLossesOnlyTheWeightsHaveAGradient) {
  const RouterCase c = router_cases().front();
  const at::Tensor logits = logits_of();
  Routed r = route(logits, {}, c.options, grad_weights_of(c));
  router_backward(at::zeros_like(r.weights), logits, r.indices, {}, {}, c.options, {}, r.grad_logits);
  EXPECT_TRUE(r.grad_logits.eq(0).all().item<bool>());
}

Routed choose(const at::Tensor& logits, const at::Tensor& correction, const RouterOptions& options) {
  Routed r;
  r.indices = at::empty({logits.size(0), options.chosen}, at::kInt);
  r.weights = at::empty({logits.size(0), options.chosen}, logits.options());
  router_forward(logits, correction, {}, options, r.indices, r.weights, {});
  return r;
}

TEST(Router, OfEqualScoresTheLowestExpertIsTakenFirst) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor logits = at::tensor({1, 2, 2, 1, 2, 0, 2, 2}, at::kFloat).view({1, 8}).to(type);
    EXPECT_TRUE(at::equal(choose(logits, {}, {.chosen = 3}).indices, int_tensor({1, 2, 4}).view({1, 3})));
    const at::Tensor flat = at::zeros({1, 8}, type);
    const RouterOptions grouped = {.chosen = 3, .groups = 4, .chosen_groups = 2};
    EXPECT_TRUE(at::equal(choose(flat, {}, grouped).indices, int_tensor({0, 1, 2}).view({1, 3})));
    // Whichever group is the best.
    const at::Tensor second_is_best = at::tensor({1.0, 0.0, 1.0, 0.5}, at::kFloat).to(type);
    const RouterOptions both = {.score = RouterScore::sigmoid, .chosen = 2, .groups = 2, .chosen_groups = 2};
    EXPECT_TRUE(at::equal(choose(at::zeros({1, 4}, type), second_is_best, both).indices,
                          int_tensor({0, 2}).view({1, 2})));
  }
}

TEST(Router, CorrectionChangesTheChoiceButNoWeight) {
  const at::Tensor logits = at::tensor({1.0, 0.5, 0.0, -1.0}, at::kFloat).view({1, 4});
  const at::Tensor correction = at::tensor({0.0, 0.0, 0.0, 5.0}, at::kFloat);
  const Routed r = choose(logits, correction, {.score = RouterScore::sigmoid, .chosen = 2});
  EXPECT_TRUE(at::equal(r.indices, int_tensor({3, 0}).view({1, 2})));
  expect_close(r.weights, at::sigmoid(at::tensor({-1.0, 1.0}, at::kDouble)).view({1, 2}), 8 * kEps32,
               "weights");
}

/// Older versions of transformers give the experts of other groups the score 0, and may take them if corrections are
/// negative.
TEST(Router, NeverTakesAnExpertOfAnotherGroup) {
  const at::Tensor logits = at::zeros({1, 4});
  const at::Tensor correction = at::tensor({-3.0, -4.0, -5.0, -6.0}, at::kFloat);
  const RouterOptions options = {.score = RouterScore::sigmoid, .chosen = 2, .groups = 2, .chosen_groups = 1};
  EXPECT_TRUE(at::equal(choose(logits, correction, options).indices, int_tensor({0, 1}).view({1, 2})));
}

TEST(Router, GroupsAreJudgedByTheirLargestOrTheSumOfTheirTwoLargestScores) {
  const at::Tensor correction = at::tensor({9.0, 0.0, 0.0, 5.0, 6.0, 0.0}, at::kFloat);
  RouterOptions options = {.chosen = 2, .groups = 2, .chosen_groups = 1, .group_score = GroupScore::largest};
  EXPECT_TRUE(
      at::equal(choose(at::zeros({1, 6}), correction, options).indices, int_tensor({0, 1}).view({1, 2})));
  options.group_score = GroupScore::two_largest;
  EXPECT_TRUE(
      at::equal(choose(at::zeros({1, 6}), correction, options).indices, int_tensor({4, 3}).view({1, 2})));
}

/// GPT-OSS takes the softmax of the chosen logits.
TEST(Router, NormalizedSoftmaxIsTheSoftmaxOfTheChosenLogits) {
  const at::Tensor logits = logits_of();
  const Routed r = choose(logits, {}, {.chosen = 4, .normalize = true});
  expect_close(r.weights, logits.to(at::kDouble).gather(1, r.indices.to(at::kLong)).softmax(1), 32 * kEps32,
               "weights");
}

// Finds what went wrong in Megatron-LM#5798, #5696 and AutoModel#3359 (losses depend on the size of a micro-batch).
TEST(Router, LossesOfRowsDoNotDependOnHowRowsAreSplit) {
  const RouterCase c = router_cases().front();
  const Routed whole = route(logits_of(), {}, c.options, grad_weights_of(c));
  at::Tensor losses = at::zeros({2}, at::kDouble);
  for (int64_t r = 0; r < kRouterRows; ++r) {
    const auto row = [&](const at::Tensor& t) {
      return t.narrow(0, r * kRouterLength, kRouterLength).contiguous();
    };
    const at::Tensor sums = at::empty({1, router_columns(kRouterExperts)}, at::kDouble);
    const at::Tensor indices = row(whole.indices);
    router_forward(row(logits_of()), {}, row(token_weights()), c.options, indices, row(whole.weights), sums);
    EXPECT_TRUE(at::equal(sums.select(0, 0), whole.row_sums.select(0, r)));
    const at::Tensor of_row = at::empty({2}, at::kDouble);
    router_losses(sums, c.options, of_row);
    losses.add_(of_row);
    const at::Tensor grad = at::empty({kRouterLength, kRouterExperts});
    router_backward(row(grad_weights_of(c)), row(logits_of()), indices, row(token_weights()), sums, c.options,
                    loss_gradient(), grad);
    EXPECT_TRUE(at::equal(grad, row(whole.grad_logits)));
  }
  expect_close(losses, whole.losses, 1e-14, "losses");
}

TEST(Router, BalanceLossOfAnEvenLoadIsTheWeightOfItsTokens) {
  // Token n prefers expert n mod E; each has the same number of tokens.
  const at::Tensor logits = at::zeros({2 * kRouterExperts, kRouterExperts});
  for (int64_t n = 0; n < logits.size(0); ++n) logits.select(0, n).select(0, n % kRouterExperts).fill_(4.0);
  const at::Tensor sums = at::empty({1, router_columns(kRouterExperts)}, at::kDouble);
  const RouterOptions options = {.chosen = 1};
  const Routed r = {at::empty({2 * kRouterExperts, 1}, at::kInt),
                    at::empty({2 * kRouterExperts, 1}),
                    sums,
                    at::empty({2}, at::kDouble),
                    {}};
  router_forward(logits, {}, at::ones({2 * kRouterExperts}), options, r.indices, r.weights, sums);
  router_losses(sums, options, r.losses);
  EXPECT_NEAR(r.losses.select(0, 0).item<double>(), 2.0 * kRouterExperts, 1e-5);
}

// Finds what went wrong in Megatron-LM#5696 (losses count masked tokens).
TEST(Router, TokensThatDoNotCountChangeNeitherLossesNorTheirGradient) {
  const RouterCase c = router_cases().front();
  at::Tensor logits = logits_of();
  const at::Tensor none = at::zeros({kRouterTokens, c.options.chosen});
  const Routed before = route(logits, {}, c.options, none);
  const at::Tensor ignored = token_weights().eq(0);
  EXPECT_TRUE(before.grad_logits.masked_select(ignored.unsqueeze(1)).eq(0).all().item<bool>());
  logits.masked_fill_(ignored.unsqueeze(1), 7.0);
  const Routed after = route(logits, {}, c.options, none);
  EXPECT_TRUE(at::equal(before.row_sums, after.row_sums));
  EXPECT_TRUE(at::equal(before.grad_logits, after.grad_logits));
}

TEST(Router, DoesNotDependOnTheNumberOfThreads) {
  for (const RouterCase& c : router_cases()) {
    expect_same_for_all_threads([&] {
      const Routed r = route(logits_of(), correction_of(c), c.options, grad_weights_of(c));
      return std::vector<at::Tensor>{r.indices, r.weights, r.row_sums, r.losses, r.grad_logits};
    });
  }
}

TEST(Router, RefusesOptionsThatDoNotFitTheExperts) {
  EXPECT_NO_THROW(check_router({.chosen = 2, .groups = 4, .chosen_groups = 1}, 8));
  EXPECT_THROW(check_router({.chosen = 3, .groups = 4, .chosen_groups = 1}, 8), Error);
  EXPECT_THROW(check_router({.chosen = 2, .groups = 3, .chosen_groups = 1}, 8), Error);
  EXPECT_THROW(check_router({.chosen = 2, .groups = 2, .chosen_groups = 3}, 8), Error);
  EXPECT_THROW(check_router({.chosen = 0}, 8), Error);
  EXPECT_THROW(check_router({.chosen = 9}, 8), Error);
}

}  // namespace
}  // namespace stepforge::testing
