// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cross_entropy.h"

#include <cmath>
#include <limits>

#include <ATen/Parallel.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

/// LossGradient for a kernel, which reads the scale when it runs; null without gradients.
struct LogitsGradient {
  const double* scale = nullptr;
  double z_weight = 0.0;
  const float* weights = nullptr;  ///< of each row; null if all are 1
  double cap = 0.0;                ///< LossGradient::cap
  double smoothing = 0.0;          ///< LossGradient::smoothing; changes the loss too
  double label_share = 1.0;        ///< LossGradient::label_share()
  double share = 1.0;              ///< LossGradient::share
};

LogitsGradient for_kernel(const LossGradient& gradient) {
  return {gradient.scale.defined() ? gradient.scale.const_data_ptr<double>() : nullptr,
          gradient.z_weight,
          gradient.weights.defined() ? gradient.weights.const_data_ptr<float>() : nullptr,
          gradient.cap,
          gradient.smoothing,
          gradient.label_share(),
          gradient.share};
}

void check_labels(const int64_t* labels, int64_t count, int64_t vocabulary) {
  for (int64_t n = 0; n < count; ++n) {
    if (labels[n] != kIgnoredLabel && (labels[n] < 0 || labels[n] >= vocabulary)) {
      throw Error(
          format("cross_entropy: label {} of token {} is neither {} (ignored) nor in a vocabulary of {}",
                 labels[n], n, kIgnoredLabel, vocabulary));
    }
  }
}

template <typename T>
STEPFORGE_INLINE float row_max_body(const T* row, int64_t width) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t v = 0; v < width; ++v) {
    const float value = load(row + v);
    largest = largest < value ? value : largest;
  }
  return largest;
}

/// Sum of row - largest, or with kExp of exp(row - largest): fp32 within blocks, fp64 across them.
template <bool kExp, typename T>
STEPFORGE_INLINE double row_sum_body(const T* row, int64_t width, float largest) {
  constexpr int64_t kBlock = 1024;
  double total = 0.0;
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    const int64_t end = begin + kBlock < width ? begin + kBlock : width;
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = begin; v < end; ++v) {
      const float value = load(row + v) - largest;
      sum += kExp ? exp_approx(value) : value;
    }
    total += static_cast<double>(sum);
  }
  return total;
}

/// What the logits become, besides that of the label: factor * exp(logit - largest) - less.
struct GradientFactors {
  float largest;
  float factor;
  float less;     ///< by label smoothing
  float inverse;  ///< 1 / cap
};

template <typename T>
STEPFORGE_INLINE void row_gradient_body(T* row, int64_t width, const GradientFactors& factors) {
  const GradientFactors f = factors;
#pragma omp simd
  for (int64_t v = 0; v < width; ++v)
    store(row + v, exp_approx(load(row + v) - f.largest) * f.factor - f.less);
}

/// The same for capped logits.
template <typename T>
STEPFORGE_INLINE void capped_gradient_body(T* row, int64_t width, const GradientFactors& factors) {
  const GradientFactors f = factors;
#pragma omp simd
  for (int64_t v = 0; v < width; ++v) {
    const float logit = load(row + v);
    const float t = logit * f.inverse;
    store(row + v, (exp_approx(logit - f.largest) * f.factor - f.less) * (1.0F - t * t));
  }
}

template <typename T>
STEPFORGE_INLINE void cap_body(T* values, int64_t count, float cap) {
  const float inverse = 1.0F / cap;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(values + i, cap * tanh_approx(load(values + i) * inverse));
}

struct RowSum {
  float largest;
  double sum;
};

STEPFORGE_SIMD_CLONES float row_max(const float* row, int64_t width) {
  return row_max_body(row, width);
}
STEPFORGE_SIMD_CLONES float row_max(const BFloat16* row, int64_t width) {
  return row_max_body(row, width);
}
STEPFORGE_SIMD_CLONES double row_sum(const float* row, int64_t width, float largest) {
  return row_sum_body<true>(row, width, largest);
}
STEPFORGE_SIMD_CLONES double row_sum(const BFloat16* row, int64_t width, float largest) {
  return row_sum_body<true>(row, width, largest);
}
STEPFORGE_SIMD_CLONES double row_total(const float* row, int64_t width, float largest) {
  return row_sum_body<false>(row, width, largest);
}
STEPFORGE_SIMD_CLONES double row_total(const BFloat16* row, int64_t width, float largest) {
  return row_sum_body<false>(row, width, largest);
}
STEPFORGE_SIMD_CLONES void row_gradient(float* row, int64_t width, const GradientFactors& factors) {
  row_gradient_body(row, width, factors);
}
STEPFORGE_SIMD_CLONES void row_gradient(BFloat16* row, int64_t width, const GradientFactors& factors) {
  row_gradient_body(row, width, factors);
}
STEPFORGE_SIMD_CLONES void capped_gradient(float* row, int64_t width, const GradientFactors& factors) {
  capped_gradient_body(row, width, factors);
}
STEPFORGE_SIMD_CLONES void capped_gradient(BFloat16* row, int64_t width, const GradientFactors& factors) {
  capped_gradient_body(row, width, factors);
}
STEPFORGE_SIMD_CLONES void cap_row(float* row, int64_t width, float cap) {
  cap_body(row, width, cap);
}
STEPFORGE_SIMD_CLONES void cap_row(BFloat16* row, int64_t width, float cap) {
  cap_body(row, width, cap);
}

/// logit - largest
template <typename T>
double centred_logit(const T* logit, float largest) {
  return static_cast<double>(load(logit)) - static_cast<double>(largest);
}

/// What this part of the vocabulary adds to the expected logit - largest: of the label, if it has it (at index `label`), and
/// with label smoothing the mean over all `tokens` of the vocabulary. The loss is log(sum) less this.
template <typename T>
double expected_logit(const T* row, int64_t width, int64_t label, float largest, double smoothing,
                      int64_t tokens) {
  double expected =
      label >= 0 && label < width ? (1.0 - smoothing) * centred_logit(row + label, largest) : 0.0;
  if (smoothing > 0.0) expected += smoothing / static_cast<double>(tokens) * row_total(row, width, largest);
  return expected;
}

/// The scale of row n.
double scale_of(const LogitsGradient& gradient, int64_t n) {
  return gradient.weights == nullptr ? *gradient.scale
                                     : *gradient.scale * static_cast<double>(gradient.weights[n]);
}

/// The row becomes the gradient of its loss; `tokens` are in the whole vocabulary. The label is at index `label` unless
/// another part of the vocabulary has it.
template <typename T>
void gradient_of_row(int64_t n, T* row, int64_t width, int64_t label, const RowSum& statistics,
                     const LogitsGradient& gradient, int64_t tokens) {
  const double lse = std::log(statistics.sum) + static_cast<double>(statistics.largest);
  const double growth = gradient.share + 2.0 * gradient.z_weight * lse;
  const double scale = scale_of(gradient, n);
  const double less = gradient.smoothing / static_cast<double>(tokens);  // of every token
  const bool has_label = label >= 0 && label < width;
  const double centred = has_label ? centred_logit(row + label, statistics.largest) : 0.0;
  const GradientFactors factors{
      .largest = statistics.largest,
      .factor = static_cast<float>(scale * growth / statistics.sum),
      .less = static_cast<float>(scale * less),
      .inverse = gradient.cap > 0.0 ? static_cast<float>(1.0 / gradient.cap) : 0.0F};
  double slope = 1.0;  // of the label's logit under the cap
  if (gradient.cap > 0.0) {
    const double share = (centred + static_cast<double>(statistics.largest)) / gradient.cap;
    slope = 1.0 - share * share;
    capped_gradient(row, width, factors);
  } else {
    row_gradient(row, width, factors);
  }
  if (!has_label) return;
  const double probability = std::exp(centred) / statistics.sum;
  const double target = gradient.label_share - gradient.smoothing + less;
  store(row + label, static_cast<float>((probability * growth - target) * scale * slope));
}

/// The loss of row n with the expected logit `expected`; with a scale the row becomes its gradient.
template <typename T>
float finish_row(int64_t n, T* row, int64_t width, int64_t label, const RowSum& statistics, double expected,
                 const LogitsGradient& gradient, int64_t tokens) {
  if (gradient.scale != nullptr) gradient_of_row(n, row, width, label, statistics, gradient, tokens);
  return static_cast<float>(std::log(statistics.sum) - expected);
}

/// The loss and the gradient of a row whose label is ignored.
template <typename T>
float ignored_row(T* row, int64_t width, const LogitsGradient& gradient) {
  if (gradient.scale != nullptr) std::fill_n(row, width, T(0.0F));
  return 0.0F;
}

/// The loss of row n with all tokens; with a scale the row becomes its gradient.
template <typename T>
float whole_row(int64_t n, T* row, int64_t width, int64_t label, const LogitsGradient& gradient) {
  if (label == kIgnoredLabel) return ignored_row(row, width, gradient);
  const float largest = row_max(row, width);
  const RowSum statistics{largest, row_sum(row, width, largest)};
  const double expected = expected_logit(row, width, label, largest, gradient.smoothing, width);
  return finish_row(n, row, width, label, statistics, expected, gradient, width);
}

/// visit(n, row n) for all rows, in parallel. The rows are changed only where the caller may change them.
template <typename T, typename Visit>
void for_each_row(const at::Tensor& logits, const Visit& visit) {
  const int64_t width = logits.size(1);
  T* rows = static_cast<T*>(
      const_cast<void*>(logits.const_data_ptr()));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  at::parallel_for(0, logits.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) visit(n, rows + n * width);
  });
}

/// visit(n, row n) for rows of either type.
template <typename Visit>
void for_each_row(const at::Tensor& logits, const Visit& visit) {
  if (logits.scalar_type() == at::kFloat) {
    for_each_row<float>(logits, visit);
  } else {
    for_each_row<BFloat16>(logits, visit);
  }
}

}  // namespace

void cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const LossGradient& loss_gradient,
                   const at::Tensor& token_loss) {
  const LogitsGradient gradient = for_kernel(loss_gradient);
  const at::Tensor wide_labels = labels.to(at::kLong);
  const auto* label_data = wide_labels.const_data_ptr<int64_t>();
  check_labels(label_data, labels.numel(), logits.size(1));
  auto* losses = token_loss.mutable_data_ptr<float>();
  for_each_row(logits, [&](int64_t n, auto* row) {
    losses[n] = whole_row(n, row, logits.size(1), label_data[n], gradient);
  });
}

void cap_logits(const at::Tensor& logits, double cap) {
  for_each_row(logits, [&](int64_t, auto* row) { cap_row(row, logits.size(1), static_cast<float>(cap)); });
}

void part_maxima(const at::Tensor& logits, const at::Tensor& largest) {
  auto* out = largest.mutable_data_ptr<float>();
  for_each_row(logits, [&](int64_t n, const auto* row) { out[n] = row_max(row, logits.size(1)); });
}

void part_terms(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                const at::Tensor& largest, double smoothing, const at::Tensor& terms) {
  const auto* label_data = labels.const_data_ptr<int64_t>();
  const int64_t width = logits.size(1);
  check_labels(label_data, labels.numel(), part.tokens(width));
  const auto* largest_data = largest.const_data_ptr<float>();
  auto* sums = terms.mutable_data_ptr<double>();
  double* const expected = sums + logits.size(0);
  for_each_row(logits, [&](int64_t n, const auto* row) {
    const int64_t label = label_data[n] == kIgnoredLabel ? -1 : label_data[n] - part.begin;
    sums[n] = row_sum(row, width, largest_data[n]);
    expected[n] = expected_logit(row, width, label, largest_data[n], smoothing, part.tokens(width));
  });
}

void part_losses(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                 const at::Tensor& largest, const at::Tensor& terms, const LossGradient& loss_gradient,
                 const at::Tensor& token_loss) {
  const LogitsGradient gradient = for_kernel(loss_gradient);
  const auto* label_data = labels.const_data_ptr<int64_t>();
  const auto* largest_data = largest.const_data_ptr<float>();
  const auto* sums = terms.const_data_ptr<double>();
  const double* const expected = sums + logits.size(0);
  auto* losses = token_loss.mutable_data_ptr<float>();
  const int64_t width = logits.size(1);
  for_each_row(logits, [&](int64_t n, auto* row) {
    const RowSum statistics{largest_data[n], sums[n]};
    losses[n] = label_data[n] == kIgnoredLabel
                    ? ignored_row(row, width, gradient)
                    : finish_row(n, row, width, label_data[n] - part.begin, statistics, expected[n], gradient,
                                 part.tokens(width));
  });
}

}  // namespace stepforge::cpu
