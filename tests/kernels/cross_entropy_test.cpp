// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cross_entropy.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/reduce.h"
#include "tests/kernels/compare.h"
#include "tests/support/whole_head.h"

namespace stepforge::testing {
namespace {

at::Tensor some_labels(int32_t count, int32_t vocabulary) {
  std::vector<int32_t> labels;
  for (int32_t n = 0; n < count; ++n) labels.push_back(n % 5 == 2 ? -100 : n * 31 % vocabulary);
  return int_tensor(labels);
}

TEST(CrossEntropy, AgreesWithTheFp64Reference) {
  for (const int64_t vocabulary : {2, 77, 3000}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor logits = (random_tensor({23, vocabulary}, 1) * 4).to(type);
      const at::Tensor labels = some_labels(23, static_cast<int32_t>(vocabulary));
      const at::Tensor wide = logits.to(at::kDouble);
      const at::Tensor expected_loss = at::empty({23}, at::kDouble);
      reference::cross_entropy(wide, labels, {scalar(0.125)}, expected_loss);
      const at::Tensor loss = at::empty({23});
      cross_entropy_forward(logits, labels, loss);
      expect_close(loss, expected_loss, 16 * kEps32, "loss alone");
      const at::Tensor grad = logits.clone();
      cross_entropy_forward_backward(grad, labels.to(at::kLong), {scalar(0.125)}, loss);
      expect_close(loss, expected_loss, 16 * kEps32, "loss");
      expect_close(grad, wide, type == at::kFloat ? 32 * kEps32 : kEps16, "gradient");
    }
  }
}

TEST(CrossEntropy, ReferenceGradientIsTheDerivative) {
  const at::Tensor logits = random_tensor({6, 9}, 2).to(at::kDouble);
  const at::Tensor labels = some_labels(6, 9);
  const at::Tensor loss = at::empty({6}, at::kDouble);
  const at::Tensor grad = logits.clone();
  cross_entropy_forward_backward(grad, labels, {scalar(1)}, loss);
  expect_derivative(
      [&](const at::Tensor& x) {
        cross_entropy_forward(x, labels, loss);
        return loss.sum().item<double>();
      },
      logits, grad, "logits");
}

TEST(CrossEntropy, CappedLogitsAgreeWithTanhInFp64) {
  for (const double cap : {0.5, 30.0}) {
    const at::Tensor logits = at::cat({random_tensor({9, 77}, 1) * 40, random_tensor({9, 77}, 2) * 1e-3});
    const at::Tensor expected = (logits.to(at::kDouble) / cap).tanh() * cap;
    cap_logits(logits, cap);
    const double error = ((logits.to(at::kDouble) - expected) / expected).abs().max().item<double>();
    EXPECT_LE(error, 16 * kEps32) << cap;
  }
  const at::Tensor ends = at::zeros({1, 3});
  ends[0][0] = std::nan("");
  ends[0][1] = INFINITY;
  ends[0][2] = -1e30;
  cap_logits(ends, 2.0);
  EXPECT_TRUE(std::isnan(ends[0][0].item<float>()));
  EXPECT_FLOAT_EQ(ends[0][1].item<float>(), 2.0F);
  EXPECT_FLOAT_EQ(ends[0][2].item<float>(), -2.0F);
}

TEST(CrossEntropy, GradientOfCappedLogitsIsThatBeforeTheCap) {
  const LossGradient gradient{.scale = scalar(0.5), .z_weight = 0.01, .cap = 1.5};
  const at::Tensor raw = (random_tensor({6, 9}, 2) * 2).to(at::kDouble);
  const at::Tensor labels = some_labels(6, 9);
  const at::Tensor loss = at::empty({6}, at::kDouble);
  const auto capped = [&](const at::Tensor& x) {
    const at::Tensor logits = x.clone();
    cap_logits(logits, gradient.cap);
    return logits;
  };
  const at::Tensor exact = capped(raw);
  cross_entropy_forward_backward(exact, labels, gradient, loss);
  expect_derivative(
      [&](const at::Tensor& x) {
        const at::Tensor logits = capped(x);
        cross_entropy_forward(logits, labels, loss);
        const at::Tensor z = at::logsumexp(logits, {1}).square().masked_fill(labels.eq(-100), 0);
        return 0.5 * (loss + 0.01 * z).sum().item<double>();
      },
      raw, exact, "logits");
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor actual = capped(raw).to(type);
    const at::Tensor expected = actual.to(at::kDouble);
    cross_entropy_forward_backward(expected, labels, gradient, loss);
    cross_entropy_forward_backward(actual, labels, gradient, at::empty({6}));
    expect_close(actual, expected, type == at::kFloat ? 32 * kEps32 : kEps16, "gradient");
  }
}

TEST(CrossEntropy, IgnoredRowsAreExactlyZero) {
  const at::Tensor logits = random_tensor({3, 50}, 3);
  const at::Tensor loss = at::empty({3}).fill_(7);
  cross_entropy_forward_backward(logits, int_tensor({-100, 4, -100}), {scalar(1)}, loss);
  EXPECT_EQ(loss[0].item<float>(), 0.0F);
  EXPECT_GT(loss[1].item<float>(), 0.0F);
  EXPECT_TRUE(logits[0].eq(0).all().item<bool>());
  EXPECT_TRUE(logits[2].eq(0).all().item<bool>());
}

TEST(CrossEntropy, HugeLogitsStayFinite) {
  for (const float huge : {1e4F, -1e4F}) {
    at::Tensor logits = random_tensor({2, 33}, 4);
    logits[0][5] = huge;
    logits[1] += huge;
    const at::Tensor wide = logits.to(at::kDouble);
    const at::Tensor expected = at::empty({2}, at::kDouble);
    reference::cross_entropy(wide, int_tensor({7, 5}), {scalar(1)}, expected);
    const at::Tensor loss = at::empty({2});
    cross_entropy_forward_backward(logits, int_tensor({7, 5}), {scalar(1)}, loss);
    expect_close(loss, expected, 16 * kEps32, "loss");
    expect_close(logits, wide, 32 * kEps32, "gradient");
  }
}

TEST(CrossEntropy, NanInARowReachesItsLoss) {
  const at::Tensor logits = random_tensor({1, 40}, 5);
  logits[0][17] = std::nan("");
  const at::Tensor loss = at::empty({1});
  cross_entropy_forward(logits, int_tensor({3}), loss);
  EXPECT_TRUE(std::isnan(loss[0].item<float>()));
}

TEST(CrossEntropy, RefusesLabelsOutsideTheVocabulary) {
  const at::Tensor logits = random_tensor({2, 10}, 6);
  const at::Tensor loss = at::empty({2});
  for (const int32_t label : {10, -1, -101}) {
    EXPECT_THROW(cross_entropy_forward(logits, int_tensor({0, label}), loss), Error) << label;
  }
}

struct Head {
  at::Tensor hidden = random_tensor({29, 24}, 7);
  at::Tensor weight = random_tensor({53, 24}, 8);
  at::Tensor labels = some_labels(29, 53);

  LinearCrossEntropyOutputs outputs(at::ScalarType type, at::ScalarType wide) const {
    return {.token_loss = at::empty({29}, wide),
            .grad_hidden = at::empty({29, 24}, type),
            .grad_weight = at::empty({53, 24}, wide),
            .accumulate_weight = false,
            .logits = {}};
  }
};

TEST(LinearCrossEntropy, ChunksAgreeWithTheWholeInFp64) {
  const Head head;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = head.hidden.to(type);
    const at::Tensor weight = head.weight.to(type);
    const LinearCrossEntropyOutputs expected = head.outputs(at::kDouble, at::kDouble);
    whole_head(hidden.to(at::kDouble), weight.to(at::kDouble), head.labels, {scalar(0.25)}, expected);
    for (const int64_t chunk : {1, 8, 29, 100}) {
      const LinearCrossEntropyOutputs actual = head.outputs(type, at::kFloat);
      linear_cross_entropy(hidden, weight, head.labels, {scalar(0.25)}, chunk, actual);
      const double tolerance = type == at::kFloat ? 64 * kEps32 : 4 * kEps16;
      expect_close(actual.token_loss, expected.token_loss, tolerance, "loss");
      expect_close(actual.grad_hidden, expected.grad_hidden, tolerance, "grad_hidden");
      expect_close(actual.grad_weight, expected.grad_weight, tolerance, "grad_weight");
    }
  }
}

/// The gradients of values and weight are those of the term by the chain rule from the sum's.
TEST(LinearCrossEntropy, ALowRankTermIsThatOfTheSumOfTheWeights) {
  const Head head;
  const at::Tensor a = random_tensor({4, head.hidden.size(1)}, 11);
  const at::Tensor values = head.hidden.matmul(a.t());
  const at::Tensor weight = random_tensor({head.weight.size(0), 4}, 12);
  const at::Tensor sum = head.weight.to(at::kDouble) + 0.5 * weight.to(at::kDouble).matmul(a.to(at::kDouble));
  const LinearCrossEntropyOutputs expected = head.outputs(at::kDouble, at::kDouble);
  whole_head(head.hidden.to(at::kDouble), sum, head.labels, {.scale = scalar(0.25), .cap = 3.0}, expected);
  for (const int64_t chunk : {1, 8, 100}) {
    const LinearCrossEntropyOutputs actual = head.outputs(at::kFloat, at::kFloat);
    const LowRankLogits term{.values = values,
                             .weight = weight,
                             .factor = 0.5,
                             .grad_values = at::empty_like(values),
                             .grad_weight = at::full(weight.sizes(), 7.0)};
    linear_cross_entropy(head.hidden, head.weight, head.labels, {.scale = scalar(0.25), .cap = 3.0}, chunk,
                         actual, {}, {}, term);
    expect_close(actual.token_loss, expected.token_loss, 256 * kEps32, "loss");
    const at::Tensor all = actual.grad_hidden + term.grad_values.matmul(a);
    expect_close(all, expected.grad_hidden, 256 * kEps32, "gradient of hidden");
    expect_close(actual.grad_weight, expected.grad_weight, 256 * kEps32, "gradient of the weight");
    expect_close(term.grad_weight, 0.5 * expected.grad_weight.matmul(a.to(at::kDouble).t()), 256 * kEps32,
                 "gradient of B");
  }
  LowRankLogits unused{.values = values,
                       .weight = weight,
                       .grad_values = at::full(values.sizes(), 7.0),
                       .grad_weight = at::full(weight.sizes(), 7.0)};
  const at::Tensor ignored = at::empty({29}, at::kInt).fill_(-100);
  linear_cross_entropy(head.hidden, head.weight, ignored, {scalar(1)}, 10,
                       head.outputs(at::kFloat, at::kFloat), {}, {}, unused);
  EXPECT_TRUE(unused.grad_values.eq(0).all().item<bool>());
  EXPECT_TRUE(unused.grad_weight.eq(0).all().item<bool>());
}

TEST(LinearCrossEntropy, AddsToTheWeightGradientWhenAsked) {
  const Head head;
  LinearCrossEntropyOutputs once = head.outputs(at::kFloat, at::kFloat);
  linear_cross_entropy(head.hidden, head.weight, head.labels, {scalar(1)}, 10, once);
  LinearCrossEntropyOutputs twice = once;
  twice.grad_weight = once.grad_weight.clone();
  twice.accumulate_weight = true;
  linear_cross_entropy(head.hidden, head.weight, head.labels, {scalar(1)}, 10, twice);
  expect_close(twice.grad_weight, once.grad_weight * 2, 32 * kEps32, "grad_weight");
}

TEST(LinearCrossEntropy, WithoutValidLabelsEverythingIsExactlyZero) {
  const Head head;
  const at::Tensor ignored = at::empty({29}, at::kInt).fill_(-100);
  const LinearCrossEntropyOutputs outputs = head.outputs(at::kFloat, at::kFloat);
  outputs.grad_weight.fill_(5);
  linear_cross_entropy(head.hidden, head.weight, ignored, {scalar(1)}, 10, outputs);
  EXPECT_TRUE(outputs.token_loss.eq(0).all().item<bool>());
  EXPECT_TRUE(outputs.grad_hidden.eq(0).all().item<bool>());
  EXPECT_TRUE(outputs.grad_weight.eq(0).all().item<bool>());
}

TEST(LinearCrossEntropy, EvaluationGivesTheSameLossAndTheLogits) {
  const Head head;
  const LinearCrossEntropyOutputs training = head.outputs(at::kFloat, at::kFloat);
  linear_cross_entropy(head.hidden, head.weight, head.labels, {scalar(1)}, 10, training);
  const LinearCrossEntropyOutputs evaluation = {
      .token_loss = at::empty({29}), .grad_hidden = {}, .grad_weight = {}, .logits = at::empty({29, 53})};
  linear_cross_entropy(head.hidden, head.weight, head.labels, {}, 10, evaluation);
  EXPECT_TRUE(at::equal(evaluation.token_loss, training.token_loss));
  expect_close(evaluation.logits, head.hidden.to(at::kDouble).matmul(head.weight.to(at::kDouble).t()),
               32 * kEps32, "logits");
}

TEST(LinearCrossEntropy, GradientsIncludeTheZLossAndTheLossDoesNot) {
  const Head head;
  constexpr double kWeight = 0.01;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = head.hidden.to(type).to(at::kDouble).requires_grad_(true);
    const at::Tensor weight = head.weight.to(type).to(at::kDouble).requires_grad_(true);
    const at::Tensor logits = at::mm(hidden, weight.t());
    const at::Tensor valid = head.labels.ne(-100);
    const at::Tensor losses =
        at::cross_entropy_loss(logits, head.labels.to(at::kLong), {}, at::Reduction::None, -100);
    const at::Tensor squares = at::logsumexp(logits, {1}).square() * valid;
    torch::autograd::backward({((losses + kWeight * squares) * 0.25).sum()}, {});
    const LinearCrossEntropyOutputs actual = head.outputs(type, at::kFloat);
    linear_cross_entropy(head.hidden.to(type), head.weight.to(type), head.labels, {scalar(0.25), kWeight}, 8,
                         actual);
    const double tolerance = type == at::kFloat ? 64 * kEps32 : 4 * kEps16;
    expect_close(actual.token_loss, losses.detach(), tolerance, "loss");
    expect_close(actual.grad_hidden, hidden.grad(), tolerance, "grad_hidden");
    expect_close(actual.grad_weight, weight.grad(), tolerance, "grad_weight");
  }
}

TEST(LinearCrossEntropy, LabelSmoothingIsThatOfTorch) {
  const Head head;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const double smoothing : {0.1, 0.75}) {
      const at::Tensor hidden = head.hidden.to(type).to(at::kDouble).requires_grad_(true);
      const at::Tensor weight = head.weight.to(type).to(at::kDouble).requires_grad_(true);
      const at::Tensor losses = at::cross_entropy_loss(at::mm(hidden, weight.t()), head.labels.to(at::kLong),
                                                       {}, at::Reduction::None, -100, smoothing);
      torch::autograd::backward({(losses * 0.25).sum()}, {});
      const LossGradient gradient{.scale = scalar(0.25), .smoothing = smoothing};
      const LinearCrossEntropyOutputs actual = head.outputs(type, at::kFloat);
      linear_cross_entropy(head.hidden.to(type), head.weight.to(type), head.labels, gradient, 8, actual);
      // The label and the others pull against each other: a sum of bf16 roundings is larger beside it.
      const double tolerance = type == at::kFloat ? 64 * kEps32 : 6 * kEps16;
      expect_close(actual.token_loss, losses.detach(), tolerance, "loss");
      expect_close(actual.grad_hidden, hidden.grad(), tolerance, "grad_hidden");
      expect_close(actual.grad_weight, weight.grad(), tolerance, "grad_weight");
      const LinearCrossEntropyOutputs reference = head.outputs(at::kDouble, at::kDouble);
      whole_head(hidden.detach(), weight.detach(), head.labels, gradient, reference);
      expect_close(reference.token_loss, losses.detach(), 1e-14, "loss of the reference");
      expect_close(reference.grad_hidden, hidden.grad(), 1e-13, "grad_hidden of the reference");
    }
  }
}

/// With a cap, a z-loss and weights, too.
TEST(CrossEntropy, SmoothedGradientIsTheDerivative) {
  const LossGradient gradient{.scale = scalar(0.5), .z_weight = 0.01, .cap = 1.5, .smoothing = 0.2};
  const at::Tensor raw = (random_tensor({6, 9}, 2) * 2).to(at::kDouble);
  const at::Tensor labels = some_labels(6, 9);
  const at::Tensor loss = at::empty({6}, at::kDouble);
  const at::Tensor exact = raw.clone();
  cap_logits(exact, gradient.cap);
  const at::Tensor capped = exact.clone();
  cross_entropy_forward_backward(exact, labels, gradient, loss);
  expect_derivative(
      [&](const at::Tensor& x) {
        const at::Tensor logits = x.clone();
        cap_logits(logits, gradient.cap);
        const at::Tensor z = at::logsumexp(logits, {1}).square().masked_fill(labels.eq(-100), 0);
        cross_entropy_forward_backward(logits, labels, gradient, loss);
        return 0.5 * (loss + 0.01 * z).sum().item<double>();
      },
      raw, exact, "logits");
  const at::Tensor actual = capped.to(at::kFloat);
  cross_entropy_forward_backward(actual, labels, gradient, at::empty({6}));
  expect_close(actual, exact, 32 * kEps32, "gradient");
}

/// The cross-entropy, as a plug-in would write it.
void plain_cross_entropy(const LossChunk& chunk) {
  const at::Tensor label = chunk.labels.unsqueeze(1);
  const at::Tensor log_p = chunk.logits.to(at::kFloat).log_softmax(1);
  chunk.token_loss.copy_(-log_p.gather(1, label).squeeze(1));
  chunk.gradient.copy_(log_p.exp()).scatter_add_(1, label, at::full({1, 1}, -1.0F).expand_as(label));
}

TEST(LinearCrossEntropy, AnotherLossGetsTheSameScalesWeightsCapAndIgnoredTokens) {
  const Head head;
  at::Tensor weights = at::zeros({29});
  for (int64_t n = 0; n < 29; ++n) weights[n] = n % 3 == 0 ? 0.5 : 0.125;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const double cap : {0.0, 1.5}) {
      const LossGradient own{.scale = scalar(0.25), .weights = weights, .cap = cap};
      LossGradient other = own;
      other.loss = plain_cross_entropy;
      const LinearCrossEntropyOutputs expected = head.outputs(type, at::kFloat);
      linear_cross_entropy(head.hidden.to(type), head.weight.to(type), head.labels, own, 8, expected);
      const LinearCrossEntropyOutputs actual = head.outputs(type, at::kFloat);
      linear_cross_entropy(head.hidden.to(type), head.weight.to(type), head.labels, other, 8, actual);
      const double tolerance = type == at::kFloat ? 64 * kEps32 : 4 * kEps16;
      expect_close(actual.token_loss, expected.token_loss, tolerance, "loss");
      expect_close(actual.grad_hidden, expected.grad_hidden, tolerance, "grad_hidden");
      expect_close(actual.grad_weight, expected.grad_weight, tolerance, "grad_weight");
    }
  }
}

TEST(LinearCrossEntropy, WeightsOfTokensScaleTheirGradientsAndNotTheirLosses) {
  const Head head;
  const int64_t tokens = head.hidden.size(0);
  at::Tensor weights = at::zeros({tokens});
  for (int64_t n = 0; n < tokens; ++n) weights[n] = n % 3 == 0 ? 0.5 : 0.125;  // powers of two scale exactly
  const LinearCrossEntropyOutputs plain = head.outputs(at::kFloat, at::kFloat);
  linear_cross_entropy(head.hidden, head.weight, head.labels, {scalar(1), 0.01}, 7, plain);
  const LinearCrossEntropyOutputs weighted = head.outputs(at::kFloat, at::kFloat);
  linear_cross_entropy(head.hidden, head.weight, head.labels, {scalar(1), 0.01, weights}, 7, weighted);
  EXPECT_TRUE(at::equal(weighted.token_loss, plain.token_loss));
  EXPECT_TRUE(at::equal(weighted.grad_hidden, plain.grad_hidden * weights.unsqueeze(1)));
  const LinearCrossEntropyOutputs reference = head.outputs(at::kFloat, at::kFloat);
  whole_head(head.hidden, head.weight, head.labels, {scalar(1), 0.01, weights}, reference);
  expect_close(weighted.grad_weight, reference.grad_weight, 64 * kEps32, "grad_weight");
}

TEST(LinearCrossEntropy, ReadsTheScaleWhenItRuns) {
  const Head head;
  const at::Tensor scale = scalar(1);
  const LinearCrossEntropyOutputs once = head.outputs(at::kFloat, at::kFloat);
  linear_cross_entropy(head.hidden, head.weight, head.labels, {scale}, 10, once);
  scale.fill_(0.25);  // a power of two scales every product exactly
  const LinearCrossEntropyOutputs quarter = head.outputs(at::kFloat, at::kFloat);
  linear_cross_entropy(head.hidden, head.weight, head.labels, {scale}, 10, quarter);
  EXPECT_TRUE(at::equal(quarter.grad_hidden, once.grad_hidden * 0.25));
  EXPECT_TRUE(at::equal(quarter.grad_weight, once.grad_weight * 0.25));
  EXPECT_TRUE(at::equal(quarter.token_loss, once.token_loss));
}

TEST(LinearCrossEntropy, RefusesAScaleThatIsNoScalar) {
  const Head head;
  const LinearCrossEntropyOutputs outputs = head.outputs(at::kFloat, at::kFloat);
  for (const at::Tensor& scale : {at::Tensor(), at::ones({1}, at::kDouble), at::ones({}, at::kFloat)})
    EXPECT_THROW(linear_cross_entropy(head.hidden, head.weight, head.labels, {scale}, 10, outputs), Error);
}

}  // namespace
}  // namespace stepforge::testing
