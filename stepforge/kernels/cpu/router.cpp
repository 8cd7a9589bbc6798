// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/router.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include "stepforge/kernels/cpu/simd.h"
#include "stepforge/kernels/kernel_list.h"

namespace stepforge::cpu {
namespace {

/// Tokens of one partial sum.
constexpr int64_t kTokensOfSum = 128;

/// exp(logit - largest) of one token; returns their sum.
STEPFORGE_SIMD_CLONES float exponentials(const float* logits, float largest, float* out, int64_t experts) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t e = 0; e < experts; ++e) {
    const float value = exp_approx(logits[e] - largest);
    out[e] = value;
    sum += value;
  }
  return sum;
}

STEPFORGE_SIMD_CLONES void sigmoids(const float* logits, float* out, int64_t experts) {
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) out[e] = 1.0F / (1.0F + exp_approx(-logits[e]));
}

STEPFORGE_SIMD_CLONES void scale_by(float* values, float factor, int64_t experts) {
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) values[e] *= factor;
}

STEPFORGE_SIMD_CLONES float product_sum(const float* a, const float* b, int64_t experts) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t e = 0; e < experts; ++e) sum += a[e] * b[e];
  return sum;
}

/// Softmax of one token's logits into `out`; returns the log of the sum of exponentials.
float softmax(const float* logits, float* out, int64_t experts) {
  const float largest = *std::max_element(logits, logits + experts);
  const float sum = exponentials(logits, largest, out, experts);
  scale_by(out, 1.0F / sum, experts);
  return largest + std::log(sum);
}

/// Keeps the k indices of largest key, by falling key. Of equal keys the one that came first stays ahead.
class Largest {
 public:
  Largest(const float* keys, int32_t* indices, int64_t k) : keys_(keys), indices_(indices), k_(k) {}

  void offer(int64_t index) {
    const float key = keys_[index];
    if (count_ == k_ && !(key > keys_[indices_[k_ - 1]])) return;
    int64_t place = count_ < k_ ? count_++ : k_ - 1;
    for (; place > 0 && key > keys_[indices_[place - 1]]; --place) indices_[place] = indices_[place - 1];
    indices_[place] = static_cast<int32_t>(index);
  }

 private:
  const float* keys_;
  int32_t* indices_;
  int64_t k_;
  int64_t count_ = 0;
};

/// The work of one thread on one token after the other.
class Router {
 public:
  Router(const RouterOptions& options, int64_t experts, const float* correction)
      : options_(options),
        experts_(experts),
        correction_(correction),
        scores_(static_cast<size_t>(experts)),
        values_(static_cast<size_t>(experts)),
        group_scores_(static_cast<size_t>(options.groups)),
        groups_(static_cast<size_t>(options.chosen_groups)) {}

  const float* scores() const { return scores_.data(); }

  /// Computes scores(), of which the sum over experts is returned. `log_sum`, if not null, gets that of exponentials.
  float score(const float* logits, float* log_sum) {
    if (options_.score == RouterScore::softmax) {
      const float result = softmax(logits, scores_.data(), experts_);
      if (log_sum != nullptr) *log_sum = result;
      return 1.0F;
    }
    if (log_sum != nullptr) *log_sum = softmax(logits, values_.data(), experts_);  // values are set later
    sigmoids(logits, scores_.data(), experts_);
    float sum = 0.0F;
    for (const float value : scores_) sum += value;
    return sum;
  }

  void choose(const float* logits, int32_t* indices) {
    for (size_t e = 0; e < scores_.size(); ++e)
      values_[e] = correction_ != nullptr ? scores_[e] + correction_[e] : scores_[e];
    const float* keys = correction_ != nullptr ? values_.data() : logits;
    Largest best(keys, indices, options_.chosen);
    if (options_.groups == 1) {
      for (int64_t e = 0; e < experts_; ++e) best.offer(e);
      return;
    }
    const int64_t size = experts_ / options_.groups;
    for (int64_t g = 0; g < options_.groups; ++g)
      group_scores_[static_cast<size_t>(g)] = group_score(keys + g * size, values_.data() + g * size, size);
    Largest best_groups(group_scores_.data(), groups_.data(), options_.chosen_groups);
    for (int64_t g = 0; g < options_.groups; ++g) best_groups.offer(g);
    std::sort(groups_.begin(), groups_.end());
    for (const int32_t g : groups_)
      for (int64_t e = g * size; e < (g + 1) * size; ++e) best.offer(e);
  }

  /// The factor of scores in weights.
  float factor(const int32_t* indices) const {
    const auto scale = static_cast<float>(options_.factor);
    return options_.normalize ? scale / (sum(indices) + static_cast<float>(options_.epsilon)) : scale;
  }

  /// The gradient of the chosen scores, added to `grad_scores` [E], for that of the weights.
  void add_score_gradients(const float* grad_weights, const int32_t* indices, float* grad_scores) const {
    const float by = factor(indices);
    float mean = 0.0F;  // of the gradient, by normalized score
    if (options_.normalize) {
      for (int64_t j = 0; j < options_.chosen; ++j) mean += grad_weights[j] * scores_[index(indices, j)];
      mean /= sum(indices) + static_cast<float>(options_.epsilon);
    }
    for (int64_t j = 0; j < options_.chosen; ++j) grad_scores[indices[j]] += by * (grad_weights[j] - mean);
  }

 private:
  static size_t index(const int32_t* indices, int64_t j) { return static_cast<size_t>(indices[j]); }

  float sum(const int32_t* indices) const {
    float total = 0.0F;
    for (int64_t j = 0; j < options_.chosen; ++j) total += scores_[index(indices, j)];
    return total;
  }

  float group_score(const float* keys, const float* values, int64_t size) const {
    if (options_.group_score == GroupScore::largest || size == 1) return *std::max_element(keys, keys + size);
    float first = std::max(values[0], values[1]);
    float second = std::min(values[0], values[1]);
    for (int64_t e = 2; e < size; ++e) {
      second = std::max(second, std::min(first, values[e]));
      first = std::max(first, values[e]);
    }
    return first + second;
  }

  const RouterOptions& options_;
  int64_t experts_;
  const float* correction_;
  std::vector<float> scores_;
  std::vector<float> values_;
  std::vector<float> group_scores_;
  std::vector<int32_t> groups_;
};

/// Adds one token to the sums of its row.
void add_token(double* sums, const Router& router, int64_t experts, float score_sum, float log_sum,
               const int32_t* indices, int64_t chosen, float weight) {
  for (int64_t j = 0; j < chosen; ++j) sums[indices[j]] += weight;
  const float share = weight / score_sum;
  for (int64_t e = 0; e < experts; ++e) sums[experts + e] += share * router.scores()[e];
  sums[2 * experts] += weight;
  sums[2 * experts + 1] += static_cast<double>(weight) * log_sum * log_sum;
}

}  // namespace

void router_forward(const at::Tensor& logits, const at::Tensor& correction, const at::Tensor& token_weights,
                    const RouterOptions& options, const at::Tensor& indices, const at::Tensor& weights,
                    const at::Tensor& row_sums) {
  const int64_t experts = logits.size(1);
  const int64_t k = options.chosen;
  const bool summed = row_sums.defined();
  const int64_t rows = summed ? row_sums.size(0) : 1;
  const int64_t length = logits.size(0) / rows;
  const int64_t blocks = (length + kTokensOfSum - 1) / kTokensOfSum;  // of each row
  const at::Tensor partials =
      summed ? at::zeros({rows, blocks, router_columns(experts)}, row_sums.options()) : at::Tensor();
  const float* const in = logits.const_data_ptr<float>();
  const float* const counted = summed ? token_weights.const_data_ptr<float>() : nullptr;
  double* const sums = summed ? partials.mutable_data_ptr<double>() : nullptr;
  int32_t* const chosen = indices.mutable_data_ptr<int32_t>();
  float* const out = weights.mutable_data_ptr<float>();
  const float* const shift = correction.defined() ? correction.const_data_ptr<float>() : nullptr;
  at::parallel_for(0, rows * blocks, 1, [&](int64_t first, int64_t last) {
    Router router(options, experts, shift);
    for (int64_t task = first; task < last; ++task) {
      const int64_t row_begin = task / blocks * length;
      const int64_t begin = row_begin + task % blocks * kTokensOfSum;
      const int64_t end = std::min(begin + kTokensOfSum, row_begin + length);
      for (int64_t n = begin; n < end; ++n) {
        float log_sum = 0.0F;
        const float score_sum = router.score(in + n * experts, summed ? &log_sum : nullptr);
        router.choose(in + n * experts, chosen + n * k);
        const float factor = router.factor(chosen + n * k);
        for (int64_t j = 0; j < k; ++j) out[n * k + j] = factor * router.scores()[chosen[n * k + j]];
        if (summed && counted[n] != 0.0F) {
          add_token(sums + task * router_columns(experts), router, experts, score_sum, log_sum,
                    chosen + n * k, k, counted[n]);
        }
      }
    }
  });
  if (!summed) return;
  row_sums.zero_();
  for (int64_t block = 0; block < blocks; ++block) row_sums.add_(partials.select(1, block));
}

void router_backward(const at::Tensor& grad_weights, const at::Tensor& logits, const at::Tensor& indices,
                     const at::Tensor& token_weights, const at::Tensor& row_sums,
                     const RouterOptions& options, const RouterLossGradient& gradient,
                     const at::Tensor& grad_logits) {
  const int64_t experts = logits.size(1);
  const int64_t k = options.chosen;
  const bool losses = gradient.scale.defined();
  const double scale = losses ? *gradient.scale.const_data_ptr<double>() : 0.0;
  const auto balance = static_cast<float>(scale * gradient.balance_weight);
  const auto z = static_cast<float>(2.0 * scale * gradient.z_weight);
  const at::Tensor balance_factors =
      losses ? router_balance_factors(row_sums, options.chosen).to(at::kFloat) : at::Tensor();
  const int64_t length = losses ? logits.size(0) / balance_factors.size(0) : logits.size(0);
  const float* const factors = losses ? balance_factors.const_data_ptr<float>() : nullptr;
  const float* const counted = losses ? token_weights.const_data_ptr<float>() : nullptr;
  const float* const in = logits.const_data_ptr<float>();
  const int32_t* const chosen = indices.const_data_ptr<int32_t>();
  const float* const grad = grad_weights.const_data_ptr<float>();
  float* const out = grad_logits.mutable_data_ptr<float>();
  at::parallel_for(0, logits.size(0), rows_per_task(8 * experts), [&](int64_t begin, int64_t end) {
    Router router(options, experts, nullptr);
    std::vector<float> soft(static_cast<size_t>(experts));
    for (int64_t n = begin; n < end; ++n) {
      float* const target = out + n * experts;  // first the gradient of the scores
      const float score_sum = router.score(in + n * experts, nullptr);
      const float* const scores = router.scores();
      const float weight = losses ? counted[n] : 0.0F;
      std::fill(target, target + experts, 0.0F);
      if (weight != 0.0F) {
        const float* const factor = factors + n / length * experts;
        const float mean = product_sum(factor, scores, experts) / score_sum;
        const float by = balance * weight / score_sum;
        for (int64_t e = 0; e < experts; ++e) target[e] = by * (factor[e] - mean);
      }
      router.add_score_gradients(grad + n * k, chosen + n * k, target);
      if (options.score == RouterScore::softmax) {
        const float mean = product_sum(target, scores, experts);
        for (int64_t e = 0; e < experts; ++e) target[e] = scores[e] * (target[e] - mean);
      } else {
        for (int64_t e = 0; e < experts; ++e) target[e] *= scores[e] * (1.0F - scores[e]);
      }
      if (weight != 0.0F && z != 0.0F) {
        const float by = z * weight * softmax(in + n * experts, soft.data(), experts);
        for (int64_t e = 0; e < experts; ++e) target[e] += by * soft[static_cast<size_t>(e)];
      }
    }
  });
}

}  // namespace stepforge::cpu
