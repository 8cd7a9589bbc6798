// SPDX-License-Identifier: Apache-2.0
// One row of logits in a block of threads: statistics and gradient, for whole and divided vocabularies.
#pragma once

#include <cfloat>

#include "stepforge/cuda/block_join.h"
#include "stepforge/cuda/cross_entropy.h"
#include "stepforge/cuda/elements.h"

namespace stepforge::cuda {

constexpr int kLossThreads = 512;

constexpr int64_t kIgnored = -100;

struct RowSums {
  double exponentials = 0.0;  ///< sum of exp(logit - largest)
  double logits = 0.0;        ///< with label smoothing, of all
};

/// The largest logit so far, and the sums with it.
struct RunningSums {
  float largest = -FLT_MAX;  // finite: a logit of -infinity adds 0
  RowSums sums = {};

  template <int kCount>
  __device__ void add(const float (&logits)[kCount], bool with_total) {
    float above = largest;
    for (int i = 0; i < kCount; ++i) above = fmaxf(above, logits[i]);
    raise(above);
    float sum = 0.0F;  // fp32 within a load, fp64 across loads
    for (int i = 0; i < kCount; ++i) sum += expf(logits[i] - largest);
    sums.exponentials += sum;
    if (!with_total) return;
    for (int i = 0; i < kCount; ++i) sums.logits += logits[i];
  }

  __device__ void raise(float above) {
    if (above > largest) sums.exponentials *= expf(largest - above);
    largest = above;
  }
};

/// Whether a row has a loss, and where the expected logit is.
struct Label {
  int64_t column;  ///< in this part of the vocabulary; -1 if it has none
  bool is_ignored;
  bool is_valid;  ///< ignored, or in the vocabulary
};

__device__ inline Label label_of(int64_t label, int64_t width, int64_t part_begin, int64_t tokens) {
  const bool is_ignored = label == kIgnored;
  const int64_t column = label - part_begin;
  const bool is_here = !is_ignored && column >= 0 && column < width;
  return {is_here ? column : -1, is_ignored, is_ignored || (label >= 0 && label < tokens)};
}

/// What this part adds to the expected logit - largest of a row (cpu/cross_entropy.cpp).
template <typename T>
__device__ double expected_logit(const T* row, int64_t width, const Label& label, float largest,
                                 double smoothing, double sum_of_logits, int64_t tokens) {
  if (!label.is_valid) return NAN;
  double expected = 0.0;
  if (label.column >= 0) expected = (1.0 - smoothing) * (double{widen(row[label.column])} - largest);
  if (smoothing > 0.0) {
    const double total = sum_of_logits - static_cast<double>(width) * largest;
    expected += smoothing / static_cast<double>(tokens) * total;
  }
  return expected;
}

/// What the logits of a row become: factor * exp(logit - largest) - less, times the slope of the cap.
struct RowGradient {
  float largest;
  float factor;
  float less;
  float inverse_cap;  ///< 0 without a cap
  int64_t label;      ///< its column, or -1
  double sum;
  double growth;
  double target;
  double scale;

  __device__ RowGradient(const LossGradient& gradient, int64_t row, const Label& label_of_row,
                         float row_largest, double row_sum, int64_t tokens)
      : largest(row_largest), label(label_of_row.column), sum(row_sum) {
    const double share = gradient.smoothing / static_cast<double>(tokens);
    growth = gradient.share + 2.0 * gradient.z_weight * (log(sum) + largest);
    scale = *gradient.scale;
    if (gradient.weights != nullptr) scale *= gradient.weights[row];
    target = gradient.label_share - gradient.smoothing + share;
    factor = static_cast<float>(scale * growth / sum);
    less = static_cast<float>(scale * share);
    inverse_cap = gradient.cap > 0.0 ? static_cast<float>(1.0 / gradient.cap) : 0.0F;
  }

  __device__ float of(float logit, int64_t column) const {
    const float share = logit * inverse_cap;
    const float slope = inverse_cap > 0.0F ? 1.0F - share * share : 1.0F;
    // For a label that is learned the difference of nearly equal numbers: in fp64. (Its exponential is then exactly 1.)
    if (column == label) {
      const double probability = expf(logit - largest) / sum;
      return static_cast<float>((probability * growth - target) * scale * slope);
    }
    return (expf(logit - largest) * factor - less) * slope;
  }

  template <int kCount, typename T>
  __device__ void write(T* row, int64_t width) const {
    for (int64_t v = threadIdx.x * kCount; v < width; v += blockDim.x * kCount) {
      float values[kCount];
      load(row + v, values);
      for (int i = 0; i < kCount; ++i) values[i] = of(values[i], v + i);
      store(values, row + v);
    }
  }
};

/// The gradient of a row that is ignored.
template <int kCount, typename T>
__device__ void write_zeros(T* row, int64_t width) {
  const float zeros[kCount] = {};
  for (int64_t v = threadIdx.x * kCount; v < width; v += blockDim.x * kCount) store(zeros, row + v);
}

}  // namespace stepforge::cuda
