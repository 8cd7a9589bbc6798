// SPDX-License-Identifier: Apache-2.0
// A part of a teacher's distribution in the loss of the head, against autograd in fp64.
#include "stepforge/kernels/soft_loss.h"

#include <array>
#include <barrier>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/topk.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/error.h"
#include "tests/kernels/compare.h"
#include "tests/support/throws.h"
#include "tests/support/whole_head.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kSoftTokens = 11;
constexpr int64_t kSoftVocabulary = 37;

at::Tensor soft_labels() {
  std::vector<int32_t> labels;
  for (int32_t n = 0; n < kSoftTokens; ++n) labels.push_back(n % 4 == 1 ? -100 : n * 31 % kSoftVocabulary);
  return int_tensor(labels);
}

/// The `k` most probable tokens of random logits.
SoftTargets soft_targets(int64_t k, double weight, double temperature = 1.0) {
  const auto [values, ids] = at::topk(random_tensor({kSoftTokens, kSoftVocabulary}, 9) * 3, k, 1);
  return {.ids = ids.to(at::kInt),
          .log_probs = at::log_softmax(values / temperature, 1).to(at::kFloat),
          .weight = weight,
          .temperature = temperature,
          .divergence = at::empty({kSoftTokens}, at::kFloat)};
}

/// Losses [n] fp64 by the formula, with a graph.
struct SoftFormula {
  at::Tensor cross_entropy;
  at::Tensor divergence;
  at::Tensor loss;
};

SoftFormula soft_formula(const at::Tensor& logits, const at::Tensor& labels, const SoftTargets& soft,
                         double cap) {
  const at::Tensor wide = logits.to(at::kDouble);
  const at::Tensor capped = cap > 0 ? (wide / cap).tanh() * cap : wide;
  const at::Tensor log_q = at::log_softmax(capped / soft.temperature, 1);
  const at::Tensor valid = labels.ne(-100).to(at::kDouble);
  const at::Tensor log_p = soft.log_probs.to(at::kDouble);
  SoftFormula found;
  const at::Tensor columns = labels.clamp_min(0).to(at::kLong).unsqueeze(1);
  found.cross_entropy = -at::log_softmax(capped, 1).gather(1, columns).squeeze(1) * valid;
  found.divergence = (log_p.exp() * (log_p - log_q.gather(1, soft.ids.to(at::kLong)))).sum(1) * valid;
  found.loss = found.cross_entropy * (1 - soft.weight) +
               found.divergence * (soft.weight * soft.temperature * soft.temperature);
  return found;
}

/// Gradients of an fp64 head, by autograd: of the input and of the weight.
std::vector<at::Tensor> soft_gradients(const at::Tensor& hidden, const at::Tensor& weight,
                                       const LossGradient& gradient, const at::Tensor& labels) {
  const at::Tensor x = hidden.detach().clone().requires_grad_();
  const at::Tensor w = weight.detach().clone().requires_grad_();
  const at::Tensor logits = x.matmul(w.t());
  at::Tensor loss = soft_formula(logits, labels, gradient.soft, gradient.cap).loss;
  if (gradient.z_weight > 0)  // of logits without a cap
    loss = loss + at::logsumexp(logits, 1).square() * labels.ne(-100).to(at::kDouble) * gradient.z_weight;
  if (gradient.weights.defined()) loss = loss * gradient.weights.to(at::kDouble);
  return torch::autograd::grad({(loss * gradient.scale).sum()}, {x, w});
}

TEST(SoftLoss, TheHeadHasItsLossAndItsGradientInFp64) {
  const at::Tensor hidden = random_tensor({kSoftTokens, 6}, 1).to(at::kDouble);
  const at::Tensor weight = random_tensor({kSoftVocabulary, 6}, 2).to(at::kDouble);
  const at::Tensor labels = soft_labels();
  for (const double share : {0.3, 1.0}) {
    for (const double cap : {0.0, 2.0}) {
      for (const double temperature : {1.0, 2.5}) {
        LossGradient gradient{.scale = scalar(0.25), .cap = cap, .soft = soft_targets(5, share, temperature)};
        if (cap > 0) gradient.weights = random_tensor({kSoftTokens}, 3).abs().to(at::kFloat);
        const LinearCrossEntropyOutputs outputs{.token_loss = at::empty({kSoftTokens}, at::kDouble),
                                                .grad_hidden = at::empty_like(hidden),
                                                .grad_weight = at::empty_like(weight)};
        linear_cross_entropy(hidden, weight, labels, gradient, 4, outputs);
        const SoftFormula expected = soft_formula(hidden.matmul(weight.t()), labels, gradient.soft, cap);
        expect_close(outputs.token_loss, expected.loss, 1e-6, "loss");
        expect_close(gradient.soft.divergence, expected.divergence, 1e-6, "divergence");
        const auto gradients = soft_gradients(hidden, weight, gradient, labels);
        // log_probs are fp32, so that their sum is 1 up to that.
        expect_close(outputs.grad_hidden, gradients[0], 1e-6, "gradient of the input");
        expect_close(outputs.grad_weight, gradients[1], 1e-6, "gradient of the weight");
      }
    }
  }
}

/// With an identity as the weight, logits are the input and so are their gradients. `roundings`: of bf16.
void expect_kernels_agree(double temperature, double z_weight, double roundings) {
  const at::Tensor labels = soft_labels();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor logits = (random_tensor({kSoftTokens, kSoftVocabulary}, 4) * 3).to(type);
    const at::Tensor identity = at::eye(kSoftVocabulary).to(type);
    const LossGradient gradient{
        .scale = scalar(0.5), .z_weight = z_weight, .soft = soft_targets(7, 0.7, temperature)};
    const LinearCrossEntropyOutputs outputs{.token_loss = at::empty({kSoftTokens}, at::kFloat),
                                            .grad_hidden = at::empty_like(logits)};
    linear_cross_entropy(logits, identity, labels, gradient, 3, outputs);
    expect_close(outputs.token_loss, soft_formula(logits, labels, gradient.soft, 0).loss, 64 * kEps32,
                 "loss");
    const auto expected = soft_gradients(logits.to(at::kDouble), identity.to(at::kDouble), gradient, labels);
    expect_close(outputs.grad_hidden, expected[0], type == at::kFloat ? 64 * kEps32 : roundings * kEps16,
                 "gradient");
  }
}

/// In bf16 q and p are rounded one after the other.
TEST(SoftLoss, TheKernelsAgreeWithFp64) {
  expect_kernels_agree(1.0, 0.0, 2);
}

/// In bf16 the gradients of both softmaxes are rounded, and their sum. The z-loss is whole, whatever the share of the label.
TEST(SoftLoss, TheKernelsAgreeWithFp64AtAnotherTemperature) {
  expect_kernels_agree(2.0, 0.05, 4);
}

/// Sums of the ranks, which are threads: those of a call by all of them.
class TwoRanks {
 public:
  TensorExchange exchange(int rank) {
    TensorExchange ranks;
    ranks.sum = [this, rank](const at::Tensor& mine) {
      combine(rank, mine, [&](const at::Tensor& other) { mine.add_(other); });
    };
    ranks.max = [this, rank](const at::Tensor& mine) {
      combine(rank, mine, [&](const at::Tensor& other) { mine.copy_(at::maximum(mine, other)); });
    };
    return ranks;
  }

 private:
  template <typename Combine>
  void combine(int rank, const at::Tensor& mine, const Combine& with) {
    values_.at(static_cast<size_t>(rank)) = mine.clone();
    barrier_.arrive_and_wait();
    with(values_.at(static_cast<size_t>(1 - rank)));
    barrier_.arrive_and_wait();
  }

  std::array<at::Tensor, 2> values_;
  std::barrier<> barrier_{2};
};

TEST(SoftLoss, PartsOfTheVocabularyAreAsTheWhole) {
  const at::Tensor hidden = random_tensor({kSoftTokens, 6}, 1).to(at::kDouble);
  const at::Tensor weight = random_tensor({kSoftVocabulary, 6}, 2).to(at::kDouble);
  for (const auto& [k, temperature] : {std::pair(int64_t{1}, 1.0), std::pair(int64_t{5}, 1.0),
                                       std::pair(int64_t{5}, 3.0), std::pair(kSoftVocabulary, 1.0)}) {
    const auto run = [&, tokens = k, softened = temperature](
                         const at::Tensor& table, const VocabularyPart& part, const TensorExchange& ranks) {
      const LossGradient gradient{
          .scale = scalar(0.25), .cap = 2.0, .soft = soft_targets(tokens, 0.6, softened)};
      const LinearCrossEntropyOutputs outputs{.token_loss = at::empty({kSoftTokens}, at::kDouble),
                                              .grad_hidden = at::empty_like(hidden),
                                              .grad_weight = at::empty_like(table)};
      linear_cross_entropy(hidden, table, soft_labels(), gradient, 4, outputs, part, ranks);
      return std::vector<at::Tensor>{outputs.token_loss, gradient.soft.divergence, outputs.grad_hidden,
                                     outputs.grad_weight};
    };
    const std::vector<at::Tensor> whole = run(weight, {}, {});
    TwoRanks ranks;
    std::array<std::vector<at::Tensor>, 2> found;
    const auto rank = [&](size_t number, int64_t begin, int64_t size) {
      found.at(number) = run(weight.narrow(0, begin, size).contiguous(), {begin, kSoftVocabulary},
                             ranks.exchange(static_cast<int>(number)));
    };
    std::thread second([&] { rank(1, 20, kSoftVocabulary - 20); });
    rank(0, 0, 20);
    second.join();
    for (size_t number = 0; number < 2; ++number) {
      expect_close(found.at(number)[0], whole[0], 1e-6, "loss");
      expect_close(found.at(number)[1], whole[1], 1e-6, "divergence");
    }
    expect_close(found[0][2] + found[1][2], whole[2], 1e-6, "gradient of the input");
    expect_close(at::cat({found[0][3], found[1][3]}), whole[3], 1e-6, "gradient of the weight");
  }
}

TEST(SoftLoss, AnEqualTeacherWithAllTokensHasNeitherLossNorGradient) {
  const at::Tensor logits = random_tensor({kSoftTokens, kSoftVocabulary}, 5) * 3;
  for (const double temperature : {1.0, 2.0}) {
    SoftTargets soft = soft_targets(kSoftVocabulary, 1.0, temperature);
    soft.log_probs = at::log_softmax(logits / temperature, 1).gather(1, soft.ids.to(at::kLong));
    const LossGradient gradient{.scale = scalar(1.0), .soft = soft};
    const LinearCrossEntropyOutputs outputs{.token_loss = at::empty({kSoftTokens}),
                                            .grad_hidden = at::empty_like(logits)};
    linear_cross_entropy(logits, at::eye(kSoftVocabulary), soft_labels(), gradient, 4, outputs);
    EXPECT_LT(outputs.token_loss.abs().max().item<double>(), 3e-6 * temperature * temperature);
    EXPECT_LT(outputs.grad_hidden.abs().max().item<double>(), 1e-6 * temperature);
  }
}

TEST(SoftLoss, TokensWithoutALabelHaveNone) {
  const at::Tensor logits = random_tensor({kSoftTokens, kSoftVocabulary}, 6);
  for (const auto& [labels, temperature] : {std::pair(soft_labels(), 1.0), std::pair(soft_labels(), 2.0),
                                            std::pair(at::full_like(soft_labels(), -100), 1.0)}) {
    const LossGradient gradient{.scale = scalar(1.0), .soft = soft_targets(4, 0.5, temperature)};
    gradient.soft.divergence.fill_(7);
    const LinearCrossEntropyOutputs outputs{.token_loss = at::empty({kSoftTokens}),
                                            .grad_hidden = at::empty_like(logits)};
    linear_cross_entropy(logits, at::eye(kSoftVocabulary), labels, gradient, 4, outputs);
    const at::Tensor ignored = labels.eq(-100);
    EXPECT_TRUE(outputs.token_loss.masked_select(ignored).eq(0).all().item<bool>());
    EXPECT_TRUE(gradient.soft.divergence.masked_select(ignored).eq(0).all().item<bool>());
    EXPECT_TRUE(outputs.grad_hidden.index({ignored}).eq(0).all().item<bool>());
  }
}

TEST(SoftLoss, GoesWithTheZLossButNotWithSmoothing) {
  const at::Tensor logits = random_tensor({kSoftTokens, kSoftVocabulary}, 7);
  const at::Tensor labels = soft_labels();
  const auto gradient_of = [&](double z_weight, const SoftTargets& soft) {
    const LinearCrossEntropyOutputs outputs{.token_loss = at::empty({kSoftTokens}),
                                            .grad_hidden = at::empty_like(logits)};
    linear_cross_entropy(logits, at::eye(kSoftVocabulary), labels,
                         {.scale = scalar(1.0), .z_weight = z_weight, .soft = soft}, 4, outputs);
    return outputs.grad_hidden;
  };
  // What the z-loss adds does not depend on the targets.
  const at::Tensor plain = gradient_of(0.1, {}) - gradient_of(0.0, {});
  const at::Tensor soft = gradient_of(0.1, soft_targets(4, 0.5)) - gradient_of(0.0, soft_targets(4, 0.5));
  EXPECT_LT((plain - soft).abs().max().item<double>(), 1e-6);
  const LossGradient smoothed{.scale = scalar(1.0), .smoothing = 0.1, .soft = soft_targets(4, 0.5)};
  const LinearCrossEntropyOutputs outputs{.token_loss = at::empty({kSoftTokens}),
                                          .grad_hidden = at::empty_like(logits)};
  EXPECT_CONTAINS(message_of<Error>([&] {
                    linear_cross_entropy(logits, at::eye(kSoftVocabulary), labels, smoothed, 4, outputs);
                  }),
                  "soft targets");
  const LossGradient frozen{.scale = scalar(1.0), .soft = soft_targets(4, 0.5, -1.0)};
  EXPECT_CONTAINS(message_of<Error>([&] {
                    linear_cross_entropy(logits, at::eye(kSoftVocabulary), labels, frozen, 4, outputs);
                  }),
                  "soft.temperature = -1");
}

TEST(LinearCrossEntropy, KeepsTheLargestLogitsOfAPartOfTheVocabulary) {
  const at::Tensor logits = random_tensor({kSoftTokens, kSoftVocabulary}, 8);
  LinearCrossEntropyOutputs outputs{.token_loss = at::empty({kSoftTokens})};
  outputs.top_logits = at::empty({kSoftTokens, 5});
  outputs.top_ids = at::empty({kSoftTokens, 5}, at::kInt);
  outputs.top_vocabulary = 30;
  linear_cross_entropy(logits, at::eye(kSoftVocabulary), soft_labels(), {}, kSoftTokens, outputs);
  const auto [values, ids] = at::topk(logits.narrow(1, 0, 30), 5, 1);
  EXPECT_TRUE(at::equal(outputs.top_logits, values));
  EXPECT_TRUE(at::equal(outputs.top_ids, ids.to(at::kInt)));
}

}  // namespace
}  // namespace stepforge::testing
