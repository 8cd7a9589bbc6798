// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/cross_entropy.h"

#include <limits>
#include <memory>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

/// Logits of some tokens, of which some are ignored.
struct LossCase {
  at::Tensor logits;
  at::Tensor labels;
  at::Tensor weights;
  double z_weight = 0.0;
  double cap = 0.0;
  double smoothing = 0.0;
  double share = 1.0;
  bool with_gradients = true;

  int64_t rows() const { return logits.size(0); }
  int64_t width() const { return logits.size(1); }
  LossGradient reference_gradient() const {
    LossGradient gradient{.z_weight = z_weight, .weights = weights, .cap = cap, .smoothing = smoothing};
    gradient.share = share;
    if (with_gradients) gradient.scale = scalar(0.37);
    return gradient;
  }
};

LossCase loss_case(int64_t rows, int64_t width, at::ScalarType type) {
  LossCase made;
  made.logits = (random_tensor({rows, width}, 1) * 4).to(type);
  made.labels = at::arange(rows, at::kLong).mul_(7919).remainder_(width);
  for (int64_t n = 2; n < rows; n += 5) made.labels[n].fill_(kIgnoredLabel);
  return made;
}

/// Options that all change results.
LossCase with_options(LossCase made) {
  made.weights = random_tensor({made.rows()}, 2).abs();
  made.z_weight = 1e-2;
  made.cap = 12.0;
  made.smoothing = 0.1;
  return made;
}

/// The gradient, as kernels take it, with the device memory that it points to.
struct DeviceGradient {
  Guarded scale{at::full({1}, 0.37, at::kDouble)};
  Guarded weights;
  cuda::LossGradient gradient;

  explicit DeviceGradient(const LossCase& c)
      : weights(c.weights.defined() ? c.weights : at::empty({0}, at::kFloat)) {
    gradient = {.z_weight = c.z_weight,
                .cap = c.cap,
                .smoothing = c.smoothing,
                .label_share = c.share,
                .share = c.share};
    if (c.with_gradients) gradient.scale = scale.data<double>();
    if (c.weights.defined()) gradient.weights = weights.data<float>();
  }
};

/// The loss of each token, and logits or their gradient.
std::vector<at::Tensor> whole_on_device(const LossCase& c, int64_t shift = 0) {
  const DeviceGradient gradient(c);
  const Guarded logits(c.logits, shift);
  const Guarded labels(c.labels);
  const Guarded token_loss({c.rows()}, at::kFloat);
  cuda::cross_entropy(dtype_of(c.logits), logits.data(), labels.data<int64_t>(), c.rows(), c.width(),
                      gradient.gradient, token_loss.data<float>(), nullptr);
  return {token_loss.copy(), logits.copy()};
}

std::vector<at::Tensor> whole_reference(const LossCase& c) {
  const at::Tensor logits = wide(c.logits);
  const at::Tensor token_loss = at::empty({c.rows()}, at::kDouble);
  if (c.rows() > 0) reference::cross_entropy(logits, c.labels, c.reference_gradient(), token_loss);
  return {token_loss, logits};
}

/// fp32: a logit less the largest is rounded to 2^-20 up to 32, which is an error of its exponential of 16 unit roundoffs;
/// the exponential and the factors are 4 more. bf16: the rounding of the result.
void expect_losses(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                   at::ScalarType type) {
  expect_close(actual[0], expected[0], 20 * kEps32, "token_loss");
  expect_close(actual[1], expected[1], tolerance_of(type, 20), "gradient");
}

void expect_whole(const LossCase& c, int64_t shift = 0) {
  expect_losses(in_both_orders([&] { return whole_on_device(c, shift); }), whole_reference(c),
                c.logits.scalar_type());
}

TEST(CudaCrossEntropy, AgreesWithTheFp64Reference) {
  for (const int64_t width : {1, 3, 17, 256, 1000, 4096, 20000}) {
    for (const int64_t rows : {0, 1, 6}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const LossCase c = loss_case(rows, width, type);
        expect_whole(c);
        expect_whole(with_options(c));
      }
    }
  }
}

TEST(CudaCrossEntropy, AShareOfTheCrossEntropyIsBesideTheWholeZLoss) {
  LossCase c = with_options(loss_case(6, 1000, at::kFloat));
  c.smoothing = 0.0;
  c.share = 0.3;
  expect_whole(c);
}

TEST(CudaCrossEntropy, WithoutAScaleLogitsStay) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    LossCase c = with_options(loss_case(6, 1000, type));
    c.with_gradients = false;
    const auto actual = in_both_orders([&] { return whole_on_device(c); });
    expect_close(actual[0], whole_reference(c)[0], 20 * kEps32, "token_loss");
    EXPECT_TRUE(same_bits(actual[1], c.logits));
  }
}

TEST(CudaCrossEntropy, MemoryNeedNotBeAligned) {
  expect_whole(with_options(loss_case(4, 64, at::kFloat)), /*shift=*/1);
  expect_whole(with_options(loss_case(4, 64, at::kBFloat16)), /*shift=*/1);
}

TEST(CudaCrossEntropy, MoreRowsThanBlocksAreAllComputed) {
  expect_whole(loss_case(cuda::kMaxBlocks + 6, 3, at::kFloat));
}

TEST(CudaCrossEntropy, GradientsOfIgnoredRowsAreExactlyZero) {
  LossCase c = with_options(loss_case(6, 100, at::kFloat));
  c.logits[2].fill_(std::numeric_limits<float>::quiet_NaN());
  const auto r = whole_on_device(c);
  EXPECT_EQ(r[0][2].item<float>(), 0.0F);
  EXPECT_TRUE(r[1][2].eq(0).all().item<bool>());
}

TEST(CudaCrossEntropy, LogitsOfMinusInfinityHaveNoProbability) {
  LossCase c = loss_case(2, 1000, at::kFloat);
  c.labels.fill_(999);
  c.logits.slice(1, 0, 996).fill_(-std::numeric_limits<float>::infinity());
  expect_whole(c);
}

TEST(CudaCrossEntropy, NanAndLabelsOutsideTheVocabularyMakeTheLossNan) {
  LossCase c = loss_case(5, 300, at::kFloat);
  c.logits[0][299].fill_(std::numeric_limits<float>::quiet_NaN());
  c.labels[1].fill_(300);
  c.labels[3].fill_(-1);
  const at::Tensor is_nan = whole_on_device(c)[0].isnan();
  EXPECT_TRUE(is_nan.equal(at::tensor({1, 1, 0, 1, 0}).to(at::kBool)));
}

TEST(CudaCrossEntropy, ALearnedLabelKeepsThePrecisionOfItsGradient) {
  LossCase c = loss_case(1, 50, at::kFloat);
  c.labels.fill_(7);
  c.logits[0][7].fill_(30.0F);  // probability 1 - 1e-12 or so
  const double actual = whole_on_device(c)[1][0][7].item<double>();
  const double expected = whole_reference(c)[1][0][7].item<double>();
  EXPECT_LT(expected, 0.0);
  EXPECT_NEAR(actual / expected, 1.0, 1e-5);
}

TEST(CudaCrossEntropy, ThePartsOfAVocabularyGiveItsLossAndGradient) {
  const std::vector<int64_t> widths = {17, 483, 500};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool options : {false, true}) {
      LossCase c = loss_case(6, 1000, type);
      if (options) c = with_options(c);
      const auto actual = in_both_orders([&]() -> std::vector<at::Tensor> {
        const DeviceGradient gradient(c);
        const Guarded labels(c.labels);
        std::vector<std::unique_ptr<Guarded>> parts;
        std::vector<cuda::VocabularyPart> places;
        std::vector<at::Tensor> maxima;
        for (int64_t begin = 0; const int64_t width : widths) {
          parts.push_back(std::make_unique<Guarded>(c.logits.narrow(1, begin, width)));
          places.push_back({begin, 1000});
          begin += width;
          const Guarded largest({6}, at::kFloat);
          cuda::part_maxima(dtype_of(c.logits), parts.back()->data(), 6, width, largest.data<float>(),
                            nullptr);
          EXPECT_TRUE(largest.tensor().equal(parts.back()->tensor().amax(1).to(at::kFloat)));
          maxima.push_back(largest.copy());
        }
        const Guarded largest(at::stack(maxima).amax(0));
        at::Tensor sums = at::zeros({2, 6}, at::kDouble);
        for (size_t i = 0; i < widths.size(); ++i) {
          const Guarded terms({2, 6}, at::kDouble);
          cuda::part_terms(dtype_of(c.logits), parts[i]->data(), labels.data<int64_t>(), 6, widths[i],
                           places[i], largest.data<float>(), c.smoothing, terms.data<double>(), nullptr);
          const at::Tensor expected = at::empty({2, 6}, at::kDouble);
          reference::part_terms(wide(parts[i]->tensor()), c.labels, {places[i].begin, 1000}, largest.tensor(),
                                c.smoothing, expected);
          expect_close(terms.tensor(), expected, 20 * kEps32, "terms");
          sums += terms.tensor();
        }
        const Guarded terms(sums);
        std::vector<at::Tensor> gradients;
        at::Tensor loss;
        for (size_t i = 0; i < widths.size(); ++i) {
          const Guarded token_loss({6}, at::kFloat);
          cuda::part_losses(dtype_of(c.logits), parts[i]->data(), labels.data<int64_t>(), 6, widths[i],
                            places[i], largest.data<float>(), terms.data<double>(), gradient.gradient,
                            token_loss.data<float>(), nullptr);
          EXPECT_TRUE(!loss.defined() || same_bits(loss, token_loss.tensor()));
          loss = token_loss.copy();
          gradients.push_back(parts[i]->copy());
        }
        return {loss, at::cat(gradients, 1)};
      });
      expect_losses(actual, whole_reference(c), type);
    }
  }
}

TEST(CudaCrossEntropy, CappedLogitsAgreeWithTheFp64Reference) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t elements : {1, 17, 1000, 4096}) {
      const at::Tensor values = (random_tensor({1, elements}, 3) * 40).to(type);
      const auto actual = in_both_orders([&]() -> std::vector<at::Tensor> {
        const Guarded logits(values);
        cuda::cap_logits(dtype_of(values), logits.data(), elements, 30.0, nullptr);
        return {logits.copy()};
      });
      const at::Tensor expected = wide(values);
      reference::cap_logits(expected, 30.0);
      expect_close(actual[0], expected, tolerance_of(type, 8), "capped");
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
